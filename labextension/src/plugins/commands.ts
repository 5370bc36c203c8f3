import type {
  JupyterFrontEnd,
  JupyterFrontEndPlugin
} from '@jupyterlab/application';
import {
  ICommandPalette,
  ISessionContextDialogs,
  SessionContextDialogs,
  showErrorMessage
} from '@jupyterlab/apputils';
import { INotebookTracker } from '@jupyterlab/notebook';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';

import { CommandIDs, SIDEBAR_ID } from '../commands';
import { gpuIcon } from '../icon';
import { chooseSlice, kernelOf } from '../notebooks';
import { leasesOfKernel } from '../rows';
import { IGpuModel } from '../tokens';

/** The commands, in the palette too. */
export const commandsPlugin: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-gpuslice:commands',
  description: 'The commands of GPU slices.',
  autoStart: true,
  requires: [IGpuModel],
  optional: [
    INotebookTracker,
    ISessionContextDialogs,
    ICommandPalette,
    ITranslator
  ],
  activate: (
    app: JupyterFrontEnd,
    model: IGpuModel,
    notebooks: INotebookTracker | null,
    sessionDialogs: ISessionContextDialogs | null,
    palette: ICommandPalette | null,
    translator: ITranslator | null
  ) => {
    const translation = translator ?? nullTranslator;
    const trans = translation.load('jupyter_gpuslice');
    const dialogs =
      sessionDialogs ?? new SessionContextDialogs({ translator: translation });
    const { commands } = app;

    const notebook = () => notebooks?.currentWidget ?? null;
    const lease = () => {
      const panel = notebook();
      const kernelId = panel && kernelOf(panel);
      return kernelId ? leasesOfKernel(model.state.leases, kernelId)[0] : null;
    };

    commands.addCommand(CommandIDs.open, {
      label: trans.__('Show GPU Slices'),
      caption: trans.__('Show the GPU sidebar'),
      icon: gpuIcon,
      describedBy: { args: { type: 'object', properties: {} } },
      execute: () => app.shell.activateById(SIDEBAR_ID)
    });
    commands.addCommand(CommandIDs.refresh, {
      label: trans.__('Refresh GPU Slices'),
      describedBy: { args: { type: 'object', properties: {} } },
      execute: () => model.refresh()
    });
    commands.addCommand(CommandIDs.choose, {
      label: trans.__('Choose GPU Slice of This Notebook…'),
      icon: gpuIcon,
      describedBy: { args: { type: 'object', properties: {} } },
      isEnabled: () => !!notebook(),
      execute: async () => {
        const panel = notebook();
        if (panel) {
          await chooseSlice({ panel, model, trans, dialogs });
        }
      }
    });
    commands.addCommand(CommandIDs.release, {
      label: () =>
        lease()?.state === 'queued'
          ? trans.__('Leave the GPU Queue with This Notebook')
          : trans.__('Release GPU Slice of This Notebook'),
      describedBy: { args: { type: 'object', properties: {} } },
      isEnabled: () => !!lease(),
      execute: async () => {
        const held = lease();
        if (!held) {
          return;
        }
        try {
          await model.release(held.id);
        } catch (error) {
          await showErrorMessage(
            trans.__('The slice was not released'),
            error as Error
          );
        }
      }
    });
    const changed = () => {
      commands.notifyCommandChanged(CommandIDs.choose);
      commands.notifyCommandChanged(CommandIDs.release);
    };
    model.stateChanged.connect(changed);
    notebooks?.currentChanged.connect(changed);

    const category = trans.__('GPU');
    for (const command of [
      CommandIDs.open,
      CommandIDs.choose,
      CommandIDs.release,
      CommandIDs.refresh
    ]) {
      palette?.addItem({ command, category });
    }
  }
};
