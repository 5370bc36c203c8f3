import type {
  JupyterFrontEnd,
  JupyterFrontEndPlugin
} from '@jupyterlab/application';
import type { Session } from '@jupyterlab/services';

import { GpuApi } from '../api';
import { GpuEvents } from '../events';
import type { IKernelList } from '../model';
import { GpuModel } from '../model';
import { basename } from '../rows';
import { IGpuModel } from '../tokens';
import type { IKernelInfo } from '../types';

/** The one model, for the views and for other extensions. */
export const modelPlugin: JupyterFrontEndPlugin<IGpuModel> = {
  id: 'jupyter-gpuslice:model',
  description: 'Keeps what is known of GPU slices up to date.',
  autoStart: true,
  provides: IGpuModel,
  activate: (app: JupyterFrontEnd): IGpuModel => {
    const { serverSettings, sessions } = app.serviceManager;
    const model = new GpuModel({
      api: new GpuApi(serverSettings),
      events: new GpuEvents(serverSettings),
      kernels: new SessionKernels(sessions)
    });
    // The stream reads everything at its opening; this is for a server whose
    // stream does not open, so that the views can say what is wrong.
    void app.restored.then(() => model.refresh());
    return model;
  }
};

/** The kernels of Jupyter's sessions, which it keeps up to date for all. */
class SessionKernels implements IKernelList {
  constructor(sessions: Session.IManager) {
    this._sessions = sessions;
    this.changed = sessions.runningChanged;
  }

  readonly changed: Session.IManager['runningChanged'];

  kernels(): IKernelInfo[] {
    const found = new Map<string, IKernelInfo>();
    for (const { kernel, name, path, type } of this._sessions.running()) {
      if (kernel && !found.has(kernel.id)) {
        const document = type === 'notebook' || type === 'file';
        found.set(kernel.id, {
          id: kernel.id,
          name: name || basename(path) || kernel.name,
          path: document ? path : null
        });
      }
    }
    return [...found.values()];
  }

  private readonly _sessions: Session.IManager;
}
