import type {
  JupyterFrontEnd,
  JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { ILauncher } from '@jupyterlab/launcher';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';

import { CommandIDs } from '../commands';
import { gpuIcon, gpuIconUrl } from '../icon';
import { newNotebook } from '../notebooks';
import { SliceDialog } from '../slicedialog';
import { IGpuModel } from '../tokens';

/** The launcher's card: a new notebook with a slice of the user's choice. */
export const launcherPlugin: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-gpuslice:launcher',
  description: 'A launcher card for a new notebook with a GPU slice.',
  autoStart: true,
  requires: [IGpuModel, ILauncher],
  optional: [ITranslator],
  activate: (
    app: JupyterFrontEnd,
    model: IGpuModel,
    launcher: ILauncher,
    translator: ITranslator | null
  ) => {
    const trans = (translator ?? nullTranslator).load('jupyter_gpuslice');
    app.commands.addCommand(CommandIDs.newNotebook, {
      label: args =>
        args.isLauncher
          ? trans.__('GPU Notebook')
          : trans.__('New Notebook with a GPU Slice…'),
      caption: trans.__('Create a notebook and choose its GPU slice'),
      icon: gpuIcon,
      describedBy: {
        args: {
          type: 'object',
          properties: {
            cwd: {
              type: 'string',
              description: 'The directory to create the notebook in'
            },
            isLauncher: { type: 'boolean' }
          }
        }
      },
      execute: async args => {
        const directory = typeof args.cwd === 'string' ? args.cwd : '';
        const { contents, kernelspecs } = app.serviceManager;
        let path = '';
        const dialog = new SliceDialog({
          model,
          trans,
          title: trans.__('New notebook with a GPU slice'),
          accept: trans.__('Create'),
          request: 'auto',
          kernelId: null,
          note: trans.__(
            'The kernel starts with the slice if it is free. If not, it starts without, and gets it when its turn comes.'
          ),
          apply: async request => {
            path = await newNotebook({ contents, directory, request });
          }
        });
        if ((await dialog.launch()).button.accept) {
          const name = kernelspecs.specs?.default;
          await app.commands.execute('docmanager:open', {
            path,
            factory: 'Notebook',
            ...(name ? { kernel: { name } } : {})
          });
        }
      }
    });
    launcher.add({
      command: CommandIDs.newNotebook,
      args: { isLauncher: true },
      category: trans.__('Notebook'),
      rank: 100,
      kernelIconUrl: gpuIconUrl
    });
  }
};
