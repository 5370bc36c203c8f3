import type {
  JupyterFrontEnd,
  JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { ILayoutRestorer } from '@jupyterlab/application';
import { Dialog, showDialog } from '@jupyterlab/apputils';
import type { TranslationBundle } from '@jupyterlab/translation';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';
import { ReactWidget } from '@jupyterlab/ui-components';

import { SIDEBAR_ID } from '../commands';
import type { IViewActions } from '../components/actions';
import { Sidebar } from '../components/sidebar';
import { gpuIcon } from '../icon';
import { IGpuModel } from '../tokens';

/** The sidebar on the left. */
export const sidebarPlugin: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-gpuslice:sidebar',
  description: 'The GPU sidebar: session, kernels, peer groups, pool, queue.',
  autoStart: true,
  requires: [IGpuModel],
  optional: [ILayoutRestorer, ITranslator],
  activate: (
    app: JupyterFrontEnd,
    model: IGpuModel,
    restorer: ILayoutRestorer | null,
    translator: ITranslator | null
  ) => {
    const trans = (translator ?? nullTranslator).load('jupyter_gpuslice');
    const actions = viewActions(app, trans);
    const widget = ReactWidget.create(
      <Sidebar model={model} actions={actions} trans={trans} />
    );
    widget.id = SIDEBAR_ID;
    widget.addClass('jp-gpuslice-sidebar');
    widget.title.icon = gpuIcon;
    widget.title.caption = trans.__('GPU slices');
    widget.node.setAttribute('role', 'region');
    widget.node.setAttribute('aria-label', trans.__('GPU slices'));
    app.shell.add(widget, 'left', { rank: 300, type: 'GPU' });
    restorer?.add(widget, SIDEBAR_ID);
  }
};

function viewActions(
  app: JupyterFrontEnd,
  trans: TranslationBundle
): IViewActions {
  const confirm: IViewActions['confirm'] = async ({ title, body, accept }) => {
    const { button } = await showDialog({
      title,
      body,
      buttons: [
        Dialog.cancelButton({ label: trans.__('Cancel') }),
        Dialog.warnButton({ label: accept })
      ]
    });
    return button.accept;
  };
  return {
    confirm,
    openDocument: path => {
      void app.commands.execute('docmanager:open', { path });
    },
    restartKernel: async (kernelId, name) => {
      const sure = await confirm({
        title: trans.__('Restart the kernel of %1?', name),
        body: trans.__('Its variables are lost. It keeps its slice.'),
        accept: trans.__('Restart')
      });
      if (!sure) {
        return;
      }
      const { kernels } = app.serviceManager;
      const model = await kernels.findById(kernelId);
      if (!model) {
        throw new Error(trans.__('The kernel of %1 is gone.', name));
      }
      const connection = kernels.connectTo({ model });
      try {
        await connection.restart();
      } finally {
        connection.dispose();
      }
    }
  };
}
