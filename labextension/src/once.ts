/** Two of the same within this time are one, heard in several tabs. In ms. */
const SAME = 5000;

/** How long a claim must stand before it is believed. In ms. */
const SETTLE = 150;

/** After this time nobody asks for a claim any more. In ms. */
const OLD = 3_600_000;

interface IClaim {
  tab: string;
  at: number;
}

interface IWaiting extends IClaim {
  key: string;
  show: () => void;
}

/**
 * Shows a thing once, in the tab that the person sees, though every tab of the
 * browser hears of it.
 *
 * Tabs that are seen claim it in the storage that all share; of several that
 * claim at once, the one that wrote last has it. A tab that is not seen waits
 * until it is, and forgets what another has shown meanwhile.
 */
export class Once {
  /** `scope` is what the tabs have in common: the address of their server. */
  constructor(scope: string, options: Once.IOptions = {}) {
    this._prefix = `jupyter-gpuslice:once:${scope}:`;
    this._page = options.page ?? document;
    this._storage = options.storage ?? (() => window.localStorage);
    this._page.addEventListener('visibilitychange', () => this._onSeen());
    window.addEventListener('storage', event => this._onStorage(event));
  }

  /** Show something, unless another tab shows the same. */
  show(what: string, show: () => void): void {
    const waiting: IWaiting = {
      key: this._prefix + digest(what),
      tab: this._tab,
      at: Date.now(),
      show
    };
    if (this._page.visibilityState === 'hidden') {
      this._waiting.push(waiting);
    } else {
      this._claim(waiting);
    }
  }

  private _claim({ key, tab, at, show }: IWaiting): void {
    try {
      const storage = this._storage();
      if (isSame(readClaim(storage, key), at)) {
        return;
      }
      this._forgetOld(storage);
      storage.setItem(key, JSON.stringify({ tab, at }));
      setTimeout(() => {
        if (readClaim(storage, key)?.tab === tab) {
          show();
        }
      }, SETTLE);
    } catch {
      // The browser lets nothing be stored: rather twice than never.
      show();
    }
  }

  private _onSeen(): void {
    if (this._page.visibilityState !== 'hidden') {
      this._waiting.splice(0).forEach(waiting => this._claim(waiting));
    }
  }

  private _onStorage({ key, newValue }: StorageEvent): void {
    const claim = parseClaim(newValue);
    this._waiting = this._waiting.filter(
      waiting => waiting.key !== key || !isSame(claim, waiting.at)
    );
  }

  private _forgetOld(storage: Storage): void {
    const keys = Array.from({ length: storage.length }, (_, n) =>
      storage.key(n)
    );
    for (const key of keys) {
      if (key?.startsWith(this._prefix)) {
        const claim = readClaim(storage, key);
        if (!claim || Date.now() - claim.at > OLD) {
          storage.removeItem(key);
        }
      }
    }
  }

  private readonly _prefix: string;
  private readonly _page: Once.IPage;
  private readonly _storage: () => Storage;
  private readonly _tab = `${Date.now()}-${Math.random()}`;
  private _waiting: IWaiting[] = [];
}

export namespace Once {
  /** What of the page counts. */
  export type IPage = Pick<Document, 'visibilityState' | 'addEventListener'>;

  export interface IOptions {
    page?: IPage;
    storage?: () => Storage;
  }
}

function isSame(claim: IClaim | null, at: number): boolean {
  return !!claim && Math.abs(claim.at - at) < SAME;
}

function readClaim(storage: Storage, key: string): IClaim | null {
  return parseClaim(storage.getItem(key));
}

function parseClaim(text: string | null): IClaim | null {
  try {
    return JSON.parse(text ?? 'null') as IClaim | null;
  } catch {
    return null;
  }
}

/** A short key for a text, which itself need not be kept on disk. */
function digest(text: string): string {
  let value = 5381;
  for (let i = 0; i < text.length; i++) {
    value = (Math.imul(value, 33) ^ text.charCodeAt(i)) >>> 0;
  }
  return value.toString(36);
}
