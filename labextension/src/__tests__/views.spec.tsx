import {
  act,
  cleanup,
  fireEvent,
  render,
  screen,
  waitFor,
  within
} from '@testing-library/react';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';

import { Sidebar } from '../components/sidebar';
import { StatusItem } from '../components/status';
import { ToolbarItem } from '../components/toolbar';
import { GpuModel } from '../model';
import {
  FakeApi,
  FakeEvents,
  FakeKernels,
  device,
  group,
  lease,
  pool,
  queued,
  refusal,
  trans
} from './fakes';

let api: FakeApi;
let events: FakeEvents;
let kernels: FakeKernels;
let model: GpuModel;
const actions = {
  openDocument: vi.fn(),
  restartKernel: vi.fn(() => Promise.resolve()),
  confirm: vi.fn(() => Promise.resolve(true))
};

beforeEach(() => {
  vi.clearAllMocks();
  api = new FakeApi();
  events = new FakeEvents();
  kernels = new FakeKernels();
  model = new GpuModel({ api, events, kernels });
});

afterEach(cleanup);

async function show(): Promise<void> {
  events.connectionChanged.emit(true);
  await model.refresh();
  render(<Sidebar model={model} actions={actions} trans={trans} />);
}

const section = (name: string) => screen.getByRole('region', { name });
const button = (name: string | RegExp) => screen.getByRole('button', { name });

describe('session', () => {
  it('keeps entitled, held and used apart', async () => {
    await show();
    const rows = within(section('My session'))
      .getAllByRole('row')
      .map(row => row.textContent);
    expect(rows.slice(1)).toEqual([
      'Entitled 1 GPU80 GiB100%',
      'Held20 GiB25%',
      'Used2 GiB10%'
    ]);
  });

  it('reads what is not measured as unknown', async () => {
    const numbers = pool().session!;
    api.thePool = pool({
      devices: [device({ used_mib: null, utilization_percent: null })],
      session: { ...numbers, used: { memory_mib: null, percent: null } }
    });
    await show();
    expect(section('My session').textContent).toContain('Usedunknownunknown');
    const bar = within(section('Pool')).getByRole('progressbar', {
      name: 'Memory'
    });
    expect(bar.hasAttribute('aria-valuenow')).toBe(false);
  });

  it('says that simulated devices are simulated', async () => {
    api.thePool = pool({
      isolation: 'simulated',
      devices: [device({ kind: 'simulated' })]
    });
    await show();
    expect(section('My session').textContent).toContain('simulated');
    expect(section('Pool').textContent).toContain('(simulated)');
  });

  it('teaches why there is no GPU', async () => {
    api.thePool = pool({ devices: [], note: 'NVML was not found.' });
    await show();
    expect(section('My session').textContent).toContain(
      'No GPU here. NVML was not found.'
    );
    expect(screen.queryByRole('region', { name: 'Pool' })).toBeNull();
  });

  it('shows why the server could not be read, and tries again', async () => {
    api.failure = refusal;
    await show();
    expect(screen.getByRole('alert').textContent).toContain('Ask for 1.');
    api.failure = null;
    fireEvent.click(button(/^Try again/));
    await screen.findByRole('region', { name: 'My session' });
  });

  it('warns of an interrupted stream', async () => {
    await show();
    act(() => events.connectionChanged.emit(false));
    expect(screen.getByText(/may be old/)).toBeTruthy();
  });
});

describe('kernels', () => {
  it('moves with the events', async () => {
    api.theLeases = [lease()];
    await show();
    const memory = within(section('My kernels')).getByRole('progressbar', {
      name: 'Memory'
    });
    expect(memory.getAttribute('aria-valuetext')).toBe('2 / 20 GiB');
    act(() =>
      events.sendLease(
        'changed',
        lease({ used: { memory_mib: 10240, utilization_percent: 20 } })
      )
    );
    expect(memory.getAttribute('aria-valuetext')).toBe('10 / 20 GiB');
  });

  it('shows the place in the queue, and leaves it without asking', async () => {
    api.theLeases = [queued()];
    await show();
    expect(section('My kernels').textContent).toContain(
      'waits at position 2, about 3 min'
    );
    fireEvent.click(button('Leave the queue with train.ipynb'));
    await waitFor(() => expect(api.calls).toContainEqual(['release', 'q1']));
    expect(actions.confirm).not.toHaveBeenCalled();
  });

  it('asks before an active slice is released', async () => {
    api.theLeases = [lease()];
    actions.confirm.mockResolvedValueOnce(false);
    await show();
    fireEvent.click(button('Release the slice of train.ipynb'));
    await waitFor(() => expect(actions.confirm).toHaveBeenCalled());
    expect(api.calls).not.toContainEqual(['release', 'l1']);
    fireEvent.click(button('Release the slice of train.ipynb'));
    await waitFor(() => expect(api.calls).toContainEqual(['release', 'l1']));
  });

  it('resizes in place, and loses nothing when refused', async () => {
    api.theLeases = [lease()];
    await show();
    fireEvent.click(button('Resize the slice of train.ipynb'));
    const field = screen.getByLabelText<HTMLInputElement>('Request');
    expect(field.value).toBe('0.25');
    fireEvent.change(field, { target: { value: '2' } });
    api.failure = refusal;
    fireEvent.click(button('Resize'));
    const alert = await screen.findByRole('alert');
    expect(alert.textContent).toContain('2 devices are wanted');
    expect(field.value).toBe('2');
    api.failure = null;
    api.answer = lease({ request: '2' });
    fireEvent.click(button('Resize'));
    await waitFor(() => expect(screen.queryByLabelText('Request')).toBeNull());
    expect(section('My kernels').textContent).toContain('2 of');
  });

  it('explains while the request is written, and takes what would fit', async () => {
    await show();
    fireEvent.click(button('Ask for a slice for train.ipynb'));
    await screen.findByText('Fits now.');
    api.explanation = {
      fits: false,
      message: '1 device is wanted, none is free.',
      hint: 'Wait, or take less.',
      would_fit: ['0.5'],
      position: 1,
      estimate_s: 600
    };
    const field = screen.getByLabelText<HTMLInputElement>('Request');
    fireEvent.change(field, { target: { value: '1' } });
    await screen.findByText('1 device is wanted, none is free.');
    screen.getByText('Wait, or take less.');
    expect(api.calls).toContainEqual([
      'explain',
      '1',
      { kind: 'kernel', id: 'k1' }
    ]);
    fireEvent.click(button('Ask for 0.5 instead'));
    expect(field.value).toBe('0.5');
  });

  it('says how long the wait would be where the server has no hint', async () => {
    api.explanation = {
      fits: false,
      message: 'None is free.',
      position: 1,
      estimate_s: 600
    };
    await show();
    fireEvent.click(button('Ask for a slice for train.ipynb'));
    await screen.findByText('It would wait at position 1, about 10 min.');
  });

  it('changes what was asked for by name, not what bridges the wait', async () => {
    api.theLeases = [lease({ request: 'auto' }), queued({ request: '1' })];
    await show();
    expect(screen.queryByRole('button', { name: /^Release/ })).toBeNull();
    fireEvent.click(button('Leave the queue with train.ipynb'));
    await waitFor(() => expect(api.calls).toContainEqual(['release', 'q1']));
  });

  it('closes the form on Escape', async () => {
    await show();
    fireEvent.click(button('Ask for a slice for train.ipynb'));
    fireEvent.keyDown(screen.getByLabelText('Request'), { key: 'Escape' });
    expect(screen.queryByLabelText('Request')).toBeNull();
  });

  it('offers the restart that a slice needs', async () => {
    api.theLeases = [lease({ needs_restart: true })];
    await show();
    fireEvent.click(button('Restart the kernel of train.ipynb'));
    await waitFor(() =>
      expect(actions.restartKernel).toHaveBeenCalledWith('k1', 'train.ipynb')
    );
  });

  it('tells how a slice ended against the will of its holder', async () => {
    await show();
    act(() =>
      events.sendLease('ended', lease({ state: 'lost', detail: 'XID 79.' }))
    );
    expect(screen.getByRole('alert').textContent).toContain(
      'Its slice 0.25 was lost.XID 79.'
    );
    fireEvent.click(button('Dismiss'));
    expect(screen.queryByRole('alert')).toBeNull();
  });

  it('opens the notebook', async () => {
    await show();
    fireEvent.click(button('train.ipynb'));
    expect(actions.openDocument).toHaveBeenCalledWith('train.ipynb');
  });
});

describe('groups', () => {
  it('shows ranks, interrupts and stops', async () => {
    api.theGroups = [group()];
    await show();
    const ranks = within(screen.getByRole('list', { name: 'Ranks' }))
      .getAllByRole('listitem')
      .map(rank => rank.textContent);
    expect(ranks).toEqual(['rank 0 busy', 'rank 1 dead']);
    fireEvent.click(button('Interrupt the group train'));
    await waitFor(() => expect(api.calls).toContainEqual(['interrupt', 'g1']));
    fireEvent.click(button('Stop the group train'));
    await waitFor(() => expect(api.calls).toContainEqual(['stop', 'g1']));
    await waitFor(() =>
      expect(section('Peer groups').textContent).toContain('None yet')
    );
  });
});

/** WCAG 2.5.3: what is said of a control contains what it shows. */
function nameless(): string[] {
  const plain = (text: string) => text.replace(/[…×\s]/g, '').toLowerCase();
  return [...document.querySelectorAll('[aria-label]')]
    .filter(element => element.matches('button, a, input'))
    .filter(element => {
      const label = plain(element.getAttribute('aria-label') ?? '');
      return !label.includes(plain(element.textContent ?? ''));
    })
    .map(element => element.outerHTML);
}

describe('controls', () => {
  it('are called by what they show', async () => {
    api.theLeases = [
      lease({ needs_restart: true }),
      queued({ holder: { kind: 'kernel', id: 'k2', user: 'ada', name: 'x' } })
    ];
    api.theGroups = [group()];
    await show();
    expect(nameless()).toEqual([]);
    fireEvent.click(button(/^Change the request/));
    expect(nameless()).toEqual([]);
    api.explanation = { fits: false, message: 'No.', would_fit: ['0.5'] };
    fireEvent.click(button(/^Resize/));
    await screen.findByText('0.5', { selector: '.jp-gpuslice-suggestion' });
    expect(nameless()).toEqual([]);
    render(<StatusItem model={model} trans={trans} onClick={() => {}} />);
    render(
      <ToolbarItem
        model={model}
        trans={trans}
        kernelId="k1"
        icon={null}
        onClick={() => {}}
      />
    );
    expect(screen.getByText('restart to use')).toBeTruthy();
    expect(nameless()).toEqual([]);
  });

  it('open the request ready to be written over', async () => {
    api.theLeases = [lease()];
    await show();
    fireEvent.click(button(/^Resize the slice/));
    const field = screen.getByRole<HTMLInputElement>('textbox');
    expect(document.activeElement).toBe(field);
    expect(field.value.slice(field.selectionStart!, field.selectionEnd!)).toBe(
      '0.25'
    );
  });
});

describe('pool and queue', () => {
  it("says that they are the session's own, and where the hub's are", async () => {
    api.thePool = pool({ hub: '/services/gpuslice/' });
    await show();
    const link = within(section("This session's pool")).getByRole('link');
    expect(link.getAttribute('href')).toBe('/services/gpuslice/');
    expect(section("This session's queue").textContent).toContain(
      'No kernel waits.'
    );
  });

  const BEYOND = { memory_mib: 21 * 1024, utilization_percent: 90 };
  const numbers = (change: object) => ({
    ...pool().session!,
    used: { memory_mib: BEYOND.memory_mib, percent: 90 },
    ...change
  });

  it('says in words what use beyond a slice means, wherever it is shown', async () => {
    api.theLeases = [lease({ used: BEYOND })];
    api.thePool = pool({
      session: numbers({}),
      devices: [
        device({
          memory_mib: 20 * 1024,
          compute_percent: 50,
          used_mib: BEYOND.memory_mib,
          utilization_percent: 90
        })
      ]
    });
    await show();
    const marks = [
      ...document.querySelectorAll('.jp-gpuslice-track.jp-mod-over')
    ];
    expect(marks).toHaveLength(4);
    for (const mark of marks) {
      const bar = mark.parentElement!;
      const words = within(bar).getByRole('note').textContent;
      expect(words).toBe(`⚠ ${bar.title}`);
    }
    expect(section('My kernels').textContent).toContain(
      'more device memory than its slice'
    );
    const session = within(section('My session')).getAllByRole('note');
    expect(session.map(note => note.textContent)).toEqual([
      '⚠ It uses more device memory than it holds.',
      '⚠ It keeps GPUs busy for more of the time than it holds. Nothing stops that here.'
    ]);
  });

  it.each(['mig', 'mps'])(
    'takes busy time for no excess where %s keeps compute apart',
    async isolation => {
      const used = { memory_mib: 1024, utilization_percent: 90 };
      api.theLeases = [lease({ isolation, used })];
      api.thePool = pool({
        isolation,
        session: numbers({ used: { memory_mib: 1024, percent: 90 } }),
        devices: [device({ compute_percent: 50, utilization_percent: 90 })]
      });
      await show();
      expect(screen.queryByRole('note')).toBeNull();
      expect(document.querySelector('.jp-mod-over')).toBeNull();
    }
  );

  it('tells devices of one name apart, with the whole UUID at hand', async () => {
    const all = ['GPU-1a2b3c4d-0000', 'GPU-5e6f7a8b-0000'];
    const [slice] = lease().slices;
    const slices = all.map(uuid => ({ ...slice, device: uuid }));
    api.thePool = pool({ devices: all.map(uuid => device({ uuid })) });
    api.theLeases = [
      lease({ slices }),
      lease({ id: 'l2', holder: { ...lease().holder, kind: 'group' }, slices })
    ];
    api.theGroups = [group()];
    await show();
    for (const uuid of all) {
      const name = `NVIDIA A100 80GB ${uuid.slice(4, 12)}`;
      expect(within(section('Pool')).getByTitle(uuid).textContent).toBe(name);
      for (const part of ['My kernels', 'Peer groups']) {
        const shown = within(section(part)).getByTitle(new RegExp(uuid));
        expect(shown.textContent).toContain(
          'NVIDIA A100 80GB 1a2b3c4d, 5e6f7a8b'
        );
      }
    }
  });

  it('counts compute in percent of one GPU, and says so of several', async () => {
    const uuids = ['GPU-1', 'GPU-2'];
    const [slice] = lease().slices;
    api.thePool = pool({ devices: uuids.map(uuid => device({ uuid })) });
    api.theLeases = [
      lease({
        slices: uuids.map(uuid => ({
          ...slice,
          device: uuid,
          compute_cap_percent: 100
        }))
      })
    ];
    await show();
    const bar = within(section('My kernels')).getByRole('progressbar', {
      name: 'Compute of 2 GPUs'
    });
    expect(bar.getAttribute('aria-valuetext')).toBe('20% / 200%');
    expect(section('My session').textContent).toContain(
      'Compute of 100% is one whole GPU.'
    );
  });

  it('says what of each GPU is kept', async () => {
    api.thePool = pool({ devices: [device({ total_mib: 80.5 * 1024 })] });
    await show();
    expect(section('Pool').textContent).toContain(
      '0.5 GiB of each GPU is kept'
    );
  });

  it('names own holders, and no strangers', async () => {
    api.theLeases = [lease()];
    api.thePool = pool({
      devices: [device({ free_mib: 40 * 1024, free_percent: 50 })],
      queue: [{ id: null, request: '1', position: 1, estimate_s: null }]
    });
    await show();
    expect(section('Pool').textContent).toContain('train.ipynb, others');
    expect(section('Queue').textContent).toContain('somebody else');
  });

  it('says when a device is lost', async () => {
    api.thePool = pool({ devices: [device({ health: 'lost' })] });
    await show();
    expect(within(section('Pool')).getByText('lost')).toBeTruthy();
  });

  it('folds its sections', async () => {
    await show();
    const fold = within(section('Queue')).getByRole('button');
    fireEvent.click(fold);
    expect(fold.getAttribute('aria-expanded')).toBe('false');
    expect(screen.getByText('Nobody waits.').closest('[hidden]')).toBeTruthy();
  });
});

describe('toolbar item', () => {
  const show = async (kernelId: string | null) => {
    const onClick = vi.fn();
    await model.refresh();
    render(
      <ToolbarItem
        model={model}
        trans={trans}
        kernelId={kernelId}
        icon={null}
        onClick={onClick}
      />
    );
    return { item: screen.getByRole('button'), onClick };
  };

  it('shows the slice and its use', async () => {
    api.theLeases = [lease()];
    const { item, onClick } = await show('k1');
    expect(item.textContent).toBe('0.25 · 10%');
    expect(item.title).toContain('Memory 2 / 20 GiB');
    fireEvent.click(item);
    expect(onClick).toHaveBeenCalled();
  });

  it('says when a restart is needed', async () => {
    api.theLeases = [lease({ needs_restart: true })];
    const { item } = await show('k1');
    expect(item.textContent).toContain('restart to use');
  });

  it('shows no slice for a kernel without one, and for no kernel', async () => {
    const { item } = await show(null);
    expect(item.textContent).toBe('No slice');
  });
});

describe('status item', () => {
  it('shows held, used and the queue', async () => {
    api.theLeases = [queued()];
    await model.refresh();
    render(<StatusItem model={model} trans={trans} onClick={vi.fn()} />);
    expect(screen.getByRole('button').textContent).toBe(
      'GPU 20 GiB held · 2 GiB used · queue 2'
    );
  });

  it('says that there is none', async () => {
    api.thePool = pool({ devices: [], note: 'NVML was not found.' });
    await model.refresh();
    render(<StatusItem model={model} trans={trans} onClick={vi.fn()} />);
    const item = screen.getByRole('button');
    expect(item.textContent).toBe('GPU none');
    expect(item.title).toContain('NVML was not found.');
  });
});
