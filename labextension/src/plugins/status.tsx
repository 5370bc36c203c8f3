import type {
  JupyterFrontEnd,
  JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { ISettingRegistry } from '@jupyterlab/settingregistry';
import { IStatusBar } from '@jupyterlab/statusbar';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';
import { ReactWidget } from '@jupyterlab/ui-components';
import type { IDisposable } from '@lumino/disposable';

import { CommandIDs } from '../commands';
import { StatusItem } from '../components/status';
import { IGpuModel } from '../tokens';

/** The item in the status bar. */
export const statusPlugin: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-gpuslice:status',
  description: 'What this session holds and uses, in the status bar.',
  autoStart: true,
  requires: [IGpuModel, IStatusBar],
  optional: [ISettingRegistry, ITranslator],
  activate: async (
    app: JupyterFrontEnd,
    model: IGpuModel,
    statusBar: IStatusBar,
    registry: ISettingRegistry | null,
    translator: ITranslator | null
  ) => {
    const trans = (translator ?? nullTranslator).load('jupyter_gpuslice');
    let shown: IDisposable | null = null;
    const show = (wanted: boolean) => {
      if (wanted && !shown) {
        const item = ReactWidget.create(
          <StatusItem
            model={model}
            trans={trans}
            onClick={() => void app.commands.execute(CommandIDs.open)}
          />
        );
        item.addClass('jp-gpuslice-status-item');
        shown = statusBar.registerStatusItem('jupyter-gpuslice:status', {
          item,
          align: 'left',
          rank: 10
        });
      } else if (!wanted && shown) {
        shown.dispose();
        shown = null;
      }
    };
    const settings = await registry
      ?.load('jupyter-gpuslice:status')
      // Without its settings the item is shown, as is the default.
      .catch(() => undefined);
    const update = () => show(settings?.composite.showStatusBar !== false);
    settings?.changed.connect(update);
    update();
  }
};
