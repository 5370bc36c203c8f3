import type { Event } from '@jupyterlab/services';
import { EventManager, ServerConnection } from '@jupyterlab/services';
import type { IDisposable } from '@lumino/disposable';
import type { ISignal } from '@lumino/signaling';
import { Signal } from '@lumino/signaling';

const SCHEMAS = 'https://jupyter-gpuslice.readthedocs.io/schemas/';

export type EventName = 'lease' | 'pool' | 'group' | 'notice';

export interface IGpuEvent {
  name: EventName;
  data: Record<string, unknown>;
}

/** The server's news, and whether they are coming in. */
export interface IGpuEvents extends IDisposable {
  readonly received: ISignal<IGpuEvents, IGpuEvent>;
  /** True when a stream has opened (again), false when it has closed. */
  readonly connectionChanged: ISignal<IGpuEvents, boolean>;
}

/**
 * Jupyter's event stream, with word of its connection.
 *
 * The application's own event manager reconnects without telling anybody, and
 * what happened in between is gone. So this one gives its manager a socket
 * that tells, and the model reads everything anew at each opening.
 */
export class GpuEvents implements IGpuEvents {
  constructor(settings: ServerConnection.ISettings) {
    const connection = (open: boolean) => this._connectionChanged.emit(open);
    class TellingSocket extends settings.WebSocket {
      constructor(url: string | URL, protocols?: string | string[]) {
        super(url, protocols);
        this.addEventListener('open', () => connection(true));
        this.addEventListener('close', () => connection(false));
      }
    }
    this._manager = new EventManager({
      serverSettings: ServerConnection.makeSettings({
        ...settings,
        WebSocket: TellingSocket
      })
    });
    this._manager.stream.connect(this._onEmission, this);
  }

  get received(): ISignal<this, IGpuEvent> {
    return this._received;
  }

  get connectionChanged(): ISignal<this, boolean> {
    return this._connectionChanged;
  }

  get isDisposed(): boolean {
    return this._manager.isDisposed;
  }

  dispose(): void {
    if (!this.isDisposed) {
      this._manager.dispose();
      Signal.clearData(this);
    }
  }

  private _onEmission(_: Event.IManager, emission: Event.Emission): void {
    const event = readEvent(emission);
    if (event) {
      this._received.emit(event);
    }
  }

  private readonly _manager: EventManager;
  private readonly _received = new Signal<this, IGpuEvent>(this);
  private readonly _connectionChanged = new Signal<this, boolean>(this);
}

/** One of our events, or null for everybody else's. */
export function readEvent(emission: Event.Emission): IGpuEvent | null {
  const { schema_id: schema, ...data } = emission;
  const match = schema.startsWith(SCHEMAS)
    ? /^(lease|pool|group|notice)\/v1$/.exec(schema.slice(SCHEMAS.length))
    : null;
  return match && { name: match[1] as EventName, data };
}
