import type { ISessionContextDialogs } from '@jupyterlab/apputils';
import { Dialog, showDialog } from '@jupyterlab/apputils';
import type { NotebookPanel } from '@jupyterlab/notebook';
import type { Contents } from '@jupyterlab/services';
import type { TranslationBundle } from '@jupyterlab/translation';

import {
  METADATA_KEY,
  readRequest,
  withRequest,
  writeRequest
} from './metadata';
import { leasesOfKernel } from './rows';
import { SliceDialog } from './slicedialog';
import type { IGpuModel } from './tokens';
import type { ILease } from './types';

/** The id of the kernel that a notebook runs on now, or null. */
export function kernelOf(panel: NotebookPanel): string | null {
  return panel.sessionContext.session?.kernel?.id ?? null;
}

/** Let the user choose the slice of a notebook, and put it in place. */
export async function chooseSlice(options: {
  panel: NotebookPanel;
  model: IGpuModel;
  trans: TranslationBundle;
  dialogs: ISessionContextDialogs;
}): Promise<void> {
  const { panel, model, trans, dialogs } = options;
  const kernelId = kernelOf(panel);
  const [own] = kernelId ? leasesOfKernel(model.state.leases, kernelId) : [];
  let lease: ILease | null = null;
  const dialog = new SliceDialog({
    model,
    trans,
    title: trans.__('GPU slice of %1', panel.title.label),
    accept: kernelId ? trans.__('Use this slice') : trans.__('Keep for later'),
    request: own?.request ?? readRequest(panel.context.model) ?? 'auto',
    kernelId,
    note: kernelId
      ? trans.__(
          'The running kernel gets the slice now, or waits for it in the queue. The notebook remembers it for its next kernel.'
        )
      : trans.__(
          'No kernel is running. The notebook is saved with this request, and its next kernel starts with the slice.'
        ),
    apply: async request => {
      if (kernelId) {
        lease = await model.assign(kernelId, request);
      }
      writeRequest(panel.context.model, request);
      if (!kernelId) {
        // The server reads the request from the file when a kernel starts.
        await panel.context.save();
      }
    }
  });
  const result = await dialog.launch();
  if (result.button.accept && needsRestart(lease)) {
    const restart = await showDialog({
      title: trans.__('Restart to use the slice?'),
      body: trans.__(
        'CUDA is already in use in this kernel, which keeps it on its old slice. After a restart it uses the new one; its variables are lost.'
      ),
      buttons: [
        Dialog.cancelButton({ label: trans.__('Later') }),
        Dialog.warnButton({ label: trans.__('Restart the kernel') })
      ]
    });
    if (restart.button.accept) {
      await panel.sessionContext.session?.kernel?.restart();
    }
  } else if (result.button.accept && !kernelId && !panel.isDisposed) {
    if (panel.sessionContext.hasNoKernel) {
      await dialogs.selectKernel(panel.sessionContext);
    }
  }
}

// What a callback has assigned, the compiler still takes for null.
function needsRestart(lease: ILease | null): boolean {
  return lease?.needs_restart ?? false;
}

/** A new notebook whose file names a slice, for its first kernel to have. */
export async function newNotebook(options: {
  contents: Contents.IManager;
  directory: string;
  request: string;
}): Promise<string> {
  const { contents, directory, request } = options;
  const { path } = await contents.newUntitled({
    path: directory,
    type: 'notebook'
  });
  const file = await contents.get(path, { content: true });
  const content = file.content as { metadata: Record<string, unknown> };
  const { metadata } = content;
  await contents.save(path, {
    type: 'notebook',
    format: 'json',
    content: {
      ...content,
      metadata: {
        ...metadata,
        [METADATA_KEY]: withRequest(metadata[METADATA_KEY], request)
      }
    }
  });
  return path;
}
