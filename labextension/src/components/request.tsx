import { useId } from 'react';

import { choices } from '../choices';
import type { Trans } from '../format';
import { place, wait } from '../format';
import type { IGpuModel } from '../tokens';
import type { ILease, IProblem } from '../types';
import type { IAnswer } from './hooks';
import { useExplanation, useGpuState } from './hooks';
import { Problem } from './parts';

/** How a request would fare, in one sentence, with what would fit instead. */
function Verdict(props: {
  answer: IAnswer | null;
  text: string;
  trans: Trans;
  onChoose: (request: string) => void;
}): JSX.Element {
  const { answer, text, trans } = props;
  const current = answer && answer.request === text.trim();
  let kind = 'pending';
  let message = text.trim()
    ? trans.__('Checking…')
    : trans.__('For example 0.25, 10GiB or 2.');
  let hint = '';
  let others: string[] = [];
  if (current && answer.problem) {
    kind = 'bad';
    message = answer.problem.message;
    hint = answer.problem.hint;
  } else if (current && answer.explanation) {
    const explained = answer.explanation;
    kind = explained.fits ? 'fits' : explained.never ? 'bad' : 'waits';
    message =
      explained.message ||
      (explained.fits ? trans.__('Fits now.') : trans.__('Does not fit now.'));
    hint = explained.hint ?? '';
    if (!explained.fits) {
      others = explained.would_fit ?? [];
      if (!hint && typeof explained.position === 'number') {
        hint = trans.__(
          'It would wait at %1, %2.',
          place(explained.position, trans),
          wait(explained.estimate_s, trans)
        );
      }
    }
  }
  return (
    <div className="jp-gpuslice-verdict" data-verdict={kind} role="status">
      <div className="jp-gpuslice-verdict-message">{message}</div>
      {hint ? <div className="jp-gpuslice-verdict-hint">{hint}</div> : null}
      {others.length ? (
        <div className="jp-gpuslice-would-fit">
          <span>{trans.__('Ask for')}</span>
          {others.map(other => (
            <button
              key={other}
              type="button"
              className="jp-gpuslice-suggestion"
              aria-label={trans.__('Ask for %1 instead', other)}
              onClick={() => props.onChoose(other)}
            >
              {other}
            </button>
          ))}
        </div>
      ) : null}
    </div>
  );
}

/**
 * Where a request is written or chosen, with the server's word on it.
 *
 * Used in the sidebar (`compact`) and in dialogs.
 */
export function RequestField(props: {
  model: IGpuModel;
  trans: Trans;
  value: string;
  onChange: (request: string) => void;
  kernelId: string | null;
  /** What the holder has now: free for its new request. */
  own: ILease | null;
  compact?: boolean;
  /** Why the request was refused: said in place of how it would fare. */
  problem: IProblem | null;
  /** Whether to take the focus at first. */
  focus?: boolean;
  disabled?: boolean;
}): JSX.Element {
  const { model, trans, value, onChange, own } = props;
  const { pool } = useGpuState(model);
  const answer = useExplanation(model, value, props.kernelId);
  const id = useId();
  const list = choices(pool, own, trans);
  const chosen = value.trim();
  const shown = props.compact
    ? list.filter(choice => choice.request !== 'none')
    : list;
  return (
    <div
      className={
        'jp-gpuslice-request' + (props.compact ? ' jp-mod-compact' : '')
      }
    >
      <div
        className="jp-gpuslice-choices"
        role="radiogroup"
        aria-label={trans.__('Slices to choose from')}
      >
        {shown.map(choice => (
          <label
            key={choice.request}
            className="jp-gpuslice-choice"
            title={
              !props.compact
                ? undefined
                : choice.free === false
                  ? trans.__('%1, taken now', choice.label)
                  : choice.label
            }
            data-free={choice.free === null ? 'unknown' : String(choice.free)}
          >
            <input
              type="radio"
              name={`${id}-choice`}
              value={choice.request}
              checked={chosen === choice.request}
              disabled={props.disabled}
              onChange={() => onChange(choice.request)}
            />
            <span className="jp-gpuslice-choice-request">{choice.request}</span>
            {props.compact ? null : (
              <>
                <span className="jp-gpuslice-choice-label">{choice.label}</span>
                <span className="jp-gpuslice-choice-free">
                  {choice.free === false ? trans.__('taken now') : ''}
                </span>
              </>
            )}
          </label>
        ))}
      </div>
      <label className="jp-gpuslice-custom" htmlFor={`${id}-text`}>
        <span>{trans.__('Request')}</span>
        <input
          id={`${id}-text`}
          className="jp-mod-styled jp-gpuslice-text"
          type="text"
          value={value}
          spellCheck={false}
          autoComplete="off"
          // The form opens because the user asked for it, to write here.
          // eslint-disable-next-line jsx-a11y/no-autofocus
          autoFocus={props.focus}
          disabled={props.disabled}
          placeholder={trans.__('0.25, 10GiB, 10GiB/50%, 2, 1g.10gb')}
          aria-describedby={`${id}-verdict`}
          // What stands there is what is to be changed.
          onFocus={event => event.currentTarget.select()}
          onChange={event => onChange(event.currentTarget.value)}
        />
      </label>
      <div id={`${id}-verdict`}>
        {props.problem ? (
          <Problem problem={props.problem} trans={trans} />
        ) : (
          <Verdict
            answer={answer}
            text={value}
            trans={trans}
            onChoose={onChange}
          />
        )}
      </div>
    </div>
  );
}
