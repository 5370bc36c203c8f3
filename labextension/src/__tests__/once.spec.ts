import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';

import { Once } from '../once';

/** A browser's tab; what one writes, the others are told, as browsers do. */
class Tab implements Once.IPage {
  constructor(
    public visibilityState: DocumentVisibilityState,
    scope = '/user/ada/'
  ) {
    this._once = new Once(scope, { page: this });
  }

  readonly shown: string[] = [];
  addEventListener = (_: string, listener: unknown) => {
    this._seen = listener as () => void;
  };

  hear(what: string): void {
    this._once.show(what, () => this.shown.push(what));
  }

  turn(state: DocumentVisibilityState): void {
    this.visibilityState = state;
    this._seen();
  }

  private readonly _once: Once;
  private _seen = () => {};
}

/** jsdom has one window, which tells nobody of its own storage. */
function tellOthers(): void {
  for (let n = 0; n < localStorage.length; n++) {
    const key = localStorage.key(n)!;
    const newValue = localStorage.getItem(key);
    window.dispatchEvent(new StorageEvent('storage', { key, newValue }));
  }
}

beforeEach(() => {
  vi.useFakeTimers();
  localStorage.clear();
});

afterEach(() => vi.useRealTimers());

describe('once', () => {
  it('shows a word in one of the tabs that are seen', () => {
    const tabs = [new Tab('visible'), new Tab('visible')];
    tabs.forEach(tab => tab.hear('gone'));
    vi.runAllTimers();
    expect(tabs.flatMap(tab => tab.shown)).toEqual(['gone']);
  });

  it('settles a tie of tabs that wrote without reading each other', () => {
    const tabs = [new Tab('visible'), new Tab('visible')];
    const get = vi.spyOn(Storage.prototype, 'getItem').mockReturnValue(null);
    tabs.forEach(tab => tab.hear('gone'));
    get.mockRestore();
    vi.runAllTimers();
    expect(tabs.map(tab => tab.shown)).toEqual([[], ['gone']]);
  });

  it('prefers the tab that the person sees', () => {
    const [back, front] = [new Tab('hidden'), new Tab('visible')];
    back.hear('gone');
    front.hear('gone');
    tellOthers();
    vi.runAllTimers();
    expect([back.shown, front.shown]).toEqual([[], ['gone']]);
    vi.advanceTimersByTime(60_000);
    back.turn('visible');
    vi.runAllTimers();
    expect(back.shown).toEqual([]);
  });

  it('keeps what came while no tab was seen for the first that is', () => {
    const tabs = [new Tab('hidden'), new Tab('hidden')];
    tabs.forEach(tab => tab.hear('gone'));
    vi.advanceTimersByTime(60_000);
    for (const tab of tabs) {
      tab.turn('visible');
      tellOthers();
      vi.runAllTimers();
    }
    expect(tabs.map(tab => tab.shown)).toEqual([['gone'], []]);
  });

  it('shows again what is said again', () => {
    const tab = new Tab('visible');
    tab.hear('gone');
    vi.advanceTimersByTime(6000);
    tab.hear('gone');
    tab.hear('another');
    vi.runAllTimers();
    expect(tab.shown).toEqual(['gone', 'gone', 'another']);
  });

  it('keeps servers apart', () => {
    const tabs = [new Tab('visible'), new Tab('visible', '/user/bob/')];
    tabs.forEach(tab => tab.hear('gone'));
    vi.runAllTimers();
    expect(tabs.map(tab => tab.shown)).toEqual([['gone'], ['gone']]);
  });

  it('leaves nothing on disk for long, and no word of what was said', () => {
    const tab = new Tab('visible');
    tab.hear('ada.ipynb: gone');
    expect(JSON.stringify({ ...localStorage })).not.toContain('gone');
    vi.advanceTimersByTime(2 * 3_600_000);
    tab.hear('another');
    expect(localStorage).toHaveLength(1);
  });

  it('shows rather twice than never where nothing can be stored', () => {
    const shown = vi.fn();
    const refused = () => {
      throw new DOMException('no');
    };
    new Once('/', { storage: refused }).show('gone', shown);
    expect(shown).toHaveBeenCalledOnce();
  });
});
