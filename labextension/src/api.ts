import { URLExt } from '@jupyterlab/coreutils';
import { ServerConnection } from '@jupyterlab/services';

import type {
  IExplanation,
  IGroup,
  IHolderRef,
  ILease,
  IPool,
  IProblem
} from './types';

/** A call that the server refused, or that never reached it. */
export class GpuApiError extends Error implements IProblem {
  constructor(problem: IProblem, status: number | null) {
    super(problem.message);
    this.name = 'GpuApiError';
    this.reason = problem.reason;
    this.hint = problem.hint;
    this.status = status;
  }

  readonly reason: string;
  readonly hint: string;
  /** The HTTP status; null where no answer came. */
  readonly status: number | null;
}

/** What the model needs of the server. */
export interface IGpuApi {
  pool(): Promise<IPool>;
  leases(): Promise<ILease[]>;
  groups(): Promise<IGroup[]>;
  request(request: string, holder: IHolderRef): Promise<ILease>;
  resize(id: string, request: string): Promise<ILease>;
  release(id: string): Promise<void>;
  explain(
    request: string,
    holder?: IHolderRef,
    signal?: AbortSignal
  ): Promise<IExplanation>;
  interruptGroup(id: string): Promise<void>;
  stopGroup(id: string): Promise<void>;
}

/** The REST interface under `<base_url>gpuslice/api/v1/`. */
export class GpuApi implements IGpuApi {
  constructor(settings: ServerConnection.ISettings) {
    this._settings = settings;
  }

  async pool(): Promise<IPool> {
    return (await this._call('GET', 'pool')) as IPool;
  }

  async leases(): Promise<ILease[]> {
    const body = (await this._call('GET', 'leases')) as { leases: ILease[] };
    return body.leases;
  }

  async groups(): Promise<IGroup[]> {
    const body = (await this._call('GET', 'groups')) as { groups: IGroup[] };
    return body.groups;
  }

  async request(request: string, holder: IHolderRef): Promise<ILease> {
    const body = { request, holder, wait: true };
    return (await this._call('POST', 'leases', body)) as ILease;
  }

  async resize(id: string, request: string): Promise<ILease> {
    const path = `leases/${encodeURIComponent(id)}`;
    return (await this._call('PATCH', path, { request })) as ILease;
  }

  async release(id: string): Promise<void> {
    await this._call('DELETE', `leases/${encodeURIComponent(id)}`);
  }

  async explain(
    request: string,
    holder?: IHolderRef,
    signal?: AbortSignal
  ): Promise<IExplanation> {
    const body = holder ? { request, holder } : { request };
    return (await this._call('POST', 'explain', body, signal)) as IExplanation;
  }

  async interruptGroup(id: string): Promise<void> {
    await this._call('POST', `groups/${encodeURIComponent(id)}/interrupt`);
  }

  async stopGroup(id: string): Promise<void> {
    await this._call('DELETE', `groups/${encodeURIComponent(id)}`);
  }

  private async _call(
    method: string,
    path: string,
    body?: object,
    signal?: AbortSignal
  ): Promise<unknown> {
    const url = URLExt.join(this._settings.baseUrl, 'gpuslice/api/v1', path);
    let response: Response;
    let text: string;
    try {
      response = await ServerConnection.makeRequest(
        url,
        { method, body: body && JSON.stringify(body), signal },
        this._settings
      );
      text = await response.text();
    } catch (error) {
      throw new GpuApiError(
        {
          message: error instanceof Error ? error.message : String(error),
          reason: 'unreachable',
          hint: ''
        },
        null
      );
    }
    const data = parse(text);
    if (!response.ok) {
      throw new GpuApiError(
        readProblem(data, response.status, response.statusText),
        response.status
      );
    }
    return data;
  }

  private readonly _settings: ServerConnection.ISettings;
}

/** What a failed response says, in the one shape, whatever it held. */
export function readProblem(
  data: unknown,
  status: number,
  statusText: string
): IProblem {
  const fields: Record<string, unknown> =
    typeof data === 'object' && data !== null ? { ...data } : {};
  const text = (key: string): string => {
    const value = fields[key];
    return typeof value === 'string' ? value : '';
  };
  return {
    message: text('message') || `${status} ${statusText}`.trim(),
    reason: text('reason') || `http_${status}`,
    hint: text('hint')
  };
}

function parse(text: string): unknown {
  if (!text) {
    return null;
  }
  try {
    return JSON.parse(text) as unknown;
  } catch {
    // Not ours: a proxy's error page, for instance. The status says enough.
    return null;
  }
}
