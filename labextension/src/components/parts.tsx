import type { ReactNode } from 'react';
import { useId, useState } from 'react';

import type { Trans } from '../format';
import type { IProblem } from '../types';

/** A part of the sidebar that can be folded. */
export function Section(props: {
  name: string;
  title: string;
  count?: number;
  children: ReactNode;
}): JSX.Element {
  const [open, setOpen] = useState(true);
  const id = useId();
  return (
    <section
      className={`jp-gpuslice-section jp-gpuslice-section-${props.name}`}
      aria-labelledby={`${id}-title`}
    >
      <h3 className="jp-gpuslice-section-title">
        <button
          type="button"
          className="jp-gpuslice-fold"
          aria-expanded={open}
          aria-controls={`${id}-body`}
          onClick={() => setOpen(!open)}
        >
          <span className="jp-gpuslice-caret" aria-hidden="true" />
          <span className="jp-gpuslice-section-name" id={`${id}-title`}>
            {props.title}
          </span>
          {props.count ? (
            <span className="jp-gpuslice-count">{props.count}</span>
          ) : null}
        </button>
      </h3>
      <div id={`${id}-body`} className="jp-gpuslice-body" hidden={!open}>
        {props.children}
      </div>
    </section>
  );
}

/** Something that went wrong, where it went wrong. */
export function Problem(props: {
  problem: IProblem;
  trans: Trans;
  onDismiss?: () => void;
}): JSX.Element {
  const { problem, trans, onDismiss } = props;
  return (
    <div className="jp-gpuslice-problem" role="alert">
      <div>
        <div className="jp-gpuslice-problem-message">{problem.message}</div>
        {problem.hint ? (
          <div className="jp-gpuslice-problem-hint">{problem.hint}</div>
        ) : null}
      </div>
      {onDismiss ? (
        <button
          type="button"
          className="jp-gpuslice-dismiss"
          aria-label={trans.__('Dismiss')}
          title={trans.__('Dismiss')}
          onClick={onDismiss}
        >
          ×
        </button>
      ) : null}
    </div>
  );
}

/** A word on a coloured ground; the word alone must say it. */
export function Chip(props: {
  state: string;
  children: ReactNode;
  title?: string;
}): JSX.Element {
  return (
    <span
      className="jp-gpuslice-chip"
      data-state={props.state}
      title={props.title}
    >
      {props.children}
    </span>
  );
}

/** A warning, with a mark and in words. */
export function Warning(props: { children: ReactNode }): JSX.Element {
  return (
    <div className="jp-gpuslice-over" role="note">
      <span aria-hidden="true">⚠ </span>
      {props.children}
    </div>
  );
}

/**
 * A measured value on its scale.
 *
 * Without a value the bar is hatched, never empty: nothing measured is not
 * nothing used. `taken` is a second, paler bar behind: what is held.
 */
export function Bar(props: {
  label: string;
  text: string;
  value: number | null | undefined;
  max: number;
  taken?: number;
  /** What it means if the value is beyond the scale; empty if it means nothing. */
  excess: string;
  /** Left out where the label stands beside the bar already. */
  hideLabel?: boolean;
}): JSX.Element {
  const { label, text, value, max, taken, excess } = props;
  const share = (part: number) =>
    `${max > 0 ? Math.min(100, Math.max(0, (100 * part) / max)) : 0}%`;
  const measured = typeof value === 'number';
  const over = measured && value > max && !!excess;
  return (
    <div className="jp-gpuslice-bar" title={over ? excess : undefined}>
      {props.hideLabel ? null : (
        <div className="jp-gpuslice-bar-text" aria-hidden="true">
          <span className="jp-gpuslice-bar-label">{label}</span>
          <span className="jp-gpuslice-bar-value">{text}</span>
        </div>
      )}
      <div
        role="progressbar"
        className={
          'jp-gpuslice-track' +
          (measured ? '' : ' jp-mod-unknown') +
          (over ? ' jp-mod-over' : '')
        }
        aria-label={label}
        aria-valuemin={0}
        aria-valuemax={max}
        aria-valuenow={measured ? Math.min(value, max) : undefined}
        aria-valuetext={text}
      >
        {taken ? (
          <div className="jp-gpuslice-taken" style={{ width: share(taken) }} />
        ) : null}
        {measured ? (
          <div className="jp-gpuslice-used" style={{ width: share(value) }} />
        ) : null}
      </div>
      {over ? <Warning>{excess}</Warning> : null}
    </div>
  );
}

/** A quiet button for what can be done to one thing. */
export function ActionButton(props: {
  children: ReactNode;
  /** What it acts on, for those who cannot see where it stands. */
  label: string;
  onClick: () => void;
  disabled?: boolean;
  expanded?: boolean;
  danger?: boolean;
}): JSX.Element {
  return (
    <button
      type="button"
      className={'jp-gpuslice-action' + (props.danger ? ' jp-mod-danger' : '')}
      aria-label={props.label}
      aria-expanded={props.expanded}
      disabled={props.disabled}
      onClick={props.onClick}
    >
      {props.children}
    </button>
  );
}
