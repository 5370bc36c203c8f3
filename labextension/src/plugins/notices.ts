import type {
  JupyterFrontEnd,
  JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { Notification } from '@jupyterlab/apputils';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';

import { CommandIDs } from '../commands';
import { Once } from '../once';
import { IGpuModel } from '../tokens';

/** How long a notice that needs no answer stays, in ms. */
const SHORT = 8000;

/** What the server has to say becomes JupyterLab's notifications. */
export const noticesPlugin: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-gpuslice:notices',
  description: "The server's words on GPU slices, as notifications.",
  autoStart: true,
  requires: [IGpuModel],
  optional: [ITranslator],
  activate: (
    app: JupyterFrontEnd,
    model: IGpuModel,
    translator: ITranslator | null
  ) => {
    const trans = (translator ?? nullTranslator).load('jupyter_gpuslice');
    const once = new Once(app.serviceManager.serverSettings.baseUrl);
    model.noticed.connect((_, { level, message, kernel }) => {
      const name = model.state.kernels.find(k => k.id === kernel)?.name;
      const text = name ? `${name}: ${message}` : message;
      once.show([level, kernel, message].join('\n'), () =>
        Notification.emit(text, level, {
          autoClose: level === 'info' ? SHORT : false,
          actions: [
            {
              label: trans.__('Show GPU slices'),
              callback: () => void app.commands.execute(CommandIDs.open)
            }
          ]
        })
      );
    });
  }
};
