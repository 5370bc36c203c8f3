import type {
  JupyterFrontEnd,
  JupyterFrontEndPlugin
} from '@jupyterlab/application';
import {
  ISessionContextDialogs,
  IToolbarWidgetRegistry,
  SessionContextDialogs
} from '@jupyterlab/apputils';
import type { NotebookPanel } from '@jupyterlab/notebook';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';
import { ReactWidget, UseSignal } from '@jupyterlab/ui-components';

import { ToolbarItem } from '../components/toolbar';
import { gpuIcon } from '../icon';
import { chooseSlice, kernelOf } from '../notebooks';
import { IGpuModel } from '../tokens';

/** The item in the toolbar of notebooks: its kernel's slice. */
export const toolbarPlugin: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-gpuslice:toolbar',
  description: "The slice of a notebook's kernel, in the notebook's toolbar.",
  autoStart: true,
  requires: [IGpuModel, IToolbarWidgetRegistry],
  optional: [ISessionContextDialogs, ITranslator],
  activate: (
    _: JupyterFrontEnd,
    model: IGpuModel,
    toolbars: IToolbarWidgetRegistry,
    sessionDialogs: ISessionContextDialogs | null,
    translator: ITranslator | null
  ) => {
    const translation = translator ?? nullTranslator;
    const trans = translation.load('jupyter_gpuslice');
    const dialogs =
      sessionDialogs ?? new SessionContextDialogs({ translator: translation });
    toolbars.addFactory<NotebookPanel>('Notebook', 'gpuslice', panel => {
      const widget = ReactWidget.create(
        <UseSignal signal={panel.sessionContext.kernelChanged}>
          {() => (
            <ToolbarItem
              model={model}
              trans={trans}
              kernelId={kernelOf(panel)}
              icon={<gpuIcon.react tag="span" className="jp-gpuslice-icon" />}
              onClick={() => void chooseSlice({ panel, model, trans, dialogs })}
            />
          )}
        </UseSignal>
      );
      widget.addClass('jp-gpuslice-toolbar');
      return widget;
    });
  }
};
