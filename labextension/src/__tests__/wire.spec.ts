import { describe, expect, it, vi } from 'vitest';

// What is tested here is what goes over the wire, not JupyterLab's own client.
vi.mock('@jupyterlab/services', () => ({
  EventManager: class {},
  ServerConnection: {
    makeRequest: (url: string, init: RequestInit) => fetch(url, init)
  }
}));
vi.mock('@jupyterlab/coreutils', () => ({
  URLExt: {
    join: (...parts: string[]) => parts.join('/').replace(/\/\/gpu/, '/gpu')
  }
}));

const { GpuApi, GpuApiError, readProblem } = await import('../api');
const { readEvent } = await import('../events');

const SCHEMAS = 'https://jupyter-gpuslice.readthedocs.io/schemas/';

function answering(status: number, body: string) {
  const fetch = vi.fn<(url: string, init: RequestInit) => Promise<Response>>(
    () =>
      Promise.resolve(new Response(status === 204 ? null : body, { status }))
  );
  vi.stubGlobal('fetch', fetch);
  const settings = { baseUrl: 'http://server/user/ada/' };
  return { fetch, api: new GpuApi(settings as never) };
}

describe('REST', () => {
  it("asks for a kernel's slice, ready to wait", async () => {
    const { api, fetch } = answering(202, '{"id": "l1", "state": "queued"}');
    const answer = await api.request('0.5', { kind: 'kernel', id: 'k1' });
    expect(answer.state).toBe('queued');
    const [url, init] = fetch.mock.calls[0];
    expect(url).toBe('http://server/user/ada/gpuslice/api/v1/leases');
    expect(init.method).toBe('POST');
    expect(JSON.parse(init.body as string)).toEqual({
      request: '0.5',
      holder: { kind: 'kernel', id: 'k1' },
      wait: true
    });
  });

  it('releases, with an id that cannot leave its place in the path', async () => {
    const { api, fetch } = answering(204, '');
    await api.release('../pool');
    expect(fetch.mock.calls[0][0]).toMatch(/leases\/\.\.%2Fpool$/);
    expect(fetch.mock.calls[0][1].method).toBe('DELETE');
  });

  it('carries a refusal whole', async () => {
    const { api } = answering(
      409,
      '{"message": "Too much.", "reason": "over_quota", "hint": "Less."}'
    );
    const refused = await api.resize('l1', '2').catch((e: unknown) => e);
    expect(refused).toBeInstanceOf(GpuApiError);
    expect(refused).toMatchObject({
      message: 'Too much.',
      reason: 'over_quota',
      hint: 'Less.',
      status: 409
    });
  });

  it('makes words of an answer that is not ours', async () => {
    const { api } = answering(502, '<html>Bad gateway</html>');
    const failed = await api.pool().catch((e: unknown) => e);
    expect(failed).toMatchObject({ reason: 'http_502', status: 502 });
    expect(readProblem({ message: 7 }, 500, 'Oops').message).toBe('500 Oops');
  });

  it('makes a problem of a server that cannot be reached', async () => {
    const { api } = answering(200, '');
    vi.stubGlobal('fetch', () => Promise.reject(new Error('offline')));
    const failed = await api.pool().catch((e: unknown) => e);
    expect(failed).toMatchObject({ message: 'offline', reason: 'unreachable' });
  });
});

describe('events', () => {
  it('reads ours', () => {
    expect(
      readEvent({ schema_id: `${SCHEMAS}pool/v1`, pool: { devices: [] } })
    ).toEqual({ name: 'pool', data: { pool: { devices: [] } } });
  });

  it.each([
    'https://events.jupyter.org/jupyter_server/kernel_actions/v1',
    `${SCHEMAS}pool/v2`,
    `${SCHEMAS}other/v1`
  ])('leaves %s alone', schema_id => {
    expect(readEvent({ schema_id })).toBeNull();
  });
});
