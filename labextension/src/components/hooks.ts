import { useCallback, useEffect, useRef, useState } from 'react';
import { useSyncExternalStore } from 'react';

import type { IGpuModel, IGpuState } from '../tokens';
import type { IExplanation, IHolderRef, IProblem } from '../types';

/** The model's state; the component is drawn anew when it changes. */
export function useGpuState(model: IGpuModel): IGpuState {
  const subscribe = useCallback(
    (changed: () => void) => {
      model.stateChanged.connect(changed);
      return () => {
        model.stateChanged.disconnect(changed);
      };
    },
    [model]
  );
  return useSyncExternalStore(subscribe, () => model.state);
}

/** What went wrong, in the one shape, whatever was thrown. */
export function asProblem(error: unknown): IProblem {
  const { message, reason, hint } = (error ?? {}) as Partial<IProblem>;
  return {
    message: message || String(error),
    reason: reason ?? '',
    hint: hint ?? ''
  };
}

/** An action of the user's: whether it is under way, and why it failed. */
export interface IAction {
  busy: boolean;
  problem: IProblem | null;
  /** True when it went through. */
  run: (action: () => Promise<unknown>) => Promise<boolean>;
  clear: () => void;
}

export function useAction(): IAction {
  const [busy, setBusy] = useState(false);
  const [problem, setProblem] = useState<IProblem | null>(null);
  const run = useCallback(async (action: () => Promise<unknown>) => {
    setBusy(true);
    setProblem(null);
    try {
      await action();
      return true;
    } catch (error) {
      setProblem(asProblem(error));
      return false;
    } finally {
      setBusy(false);
    }
  }, []);
  const clear = useCallback(() => setProblem(null), []);
  return { busy, problem, run, clear };
}

/** What the server says to a request that is being typed. */
export interface IAnswer {
  /** The text that the answer is about. */
  request: string;
  explanation: IExplanation | null;
  problem: IProblem | null;
}

/** How long a text must stand still before the server is asked, in ms. */
const PAUSE = 250;

/** Ask the server about a request as it is typed; the last text wins. */
export function useExplanation(
  model: IGpuModel,
  request: string,
  kernelId: string | null
): IAnswer | null {
  const [answer, setAnswer] = useState<IAnswer | null>(null);
  const first = useRef(true);
  // Whether a request fits changes with the pool, so it is asked again then.
  const { pool } = useGpuState(model);
  const room = (pool?.devices ?? [])
    .map(d => `${d.uuid} ${d.free_mib} ${d.free_percent} ${d.health}`)
    .join();
  useEffect(() => {
    const text = request.trim();
    if (!text) {
      setAnswer(null);
      return;
    }
    const abort = new AbortController();
    const holder: IHolderRef | undefined = kernelId
      ? { kind: 'kernel', id: kernelId }
      : undefined;
    const ask = async () => {
      try {
        const explanation = await model.explain(text, holder, abort.signal);
        if (!abort.signal.aborted) {
          setAnswer({ request: text, explanation, problem: null });
        }
      } catch (error) {
        if (!abort.signal.aborted) {
          setAnswer({
            request: text,
            explanation: null,
            problem: asProblem(error)
          });
        }
      }
    };
    const timer = setTimeout(() => void ask(), first.current ? 0 : PAUSE);
    first.current = false;
    return () => {
      clearTimeout(timer);
      abort.abort();
    };
  }, [model, request, kernelId, room]);
  return answer;
}
