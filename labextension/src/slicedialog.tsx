import { Dialog } from '@jupyterlab/apputils';
import type { TranslationBundle } from '@jupyterlab/translation';
import { ReactWidget } from '@jupyterlab/ui-components';
import type { ISignal } from '@lumino/signaling';
import { Signal } from '@lumino/signaling';
import { useEffect, useReducer } from 'react';

import { asProblem } from './components/hooks';
import { RequestField } from './components/request';
import { leasesOfKernel } from './rows';
import type { IGpuModel } from './tokens';
import type { IProblem } from './types';

export namespace SliceDialog {
  export interface IOptions {
    model: IGpuModel;
    trans: TranslationBundle;
    title: string;
    /** The label of the accepting button. */
    accept: string;
    /** What stands in the field at first. */
    request: string;
    /** The kernel that the slice is for, if it runs. */
    kernelId: string | null;
    /** One sentence on what will happen. */
    note: string;
    /** What accepting does; the dialog stays open where it rejects. */
    apply: (request: string) => Promise<void>;
  }
}

/**
 * A dialog in which a slice is chosen or written.
 *
 * It closes when what it was for has been done. Where the server refuses, it
 * stays open with the refusal and everything that was written.
 */
export class SliceDialog extends Dialog<string> {
  constructor(options: SliceDialog.IOptions) {
    const body = new SliceDialogBody(options);
    super({
      title: options.title,
      body,
      focusNodeSelector: '.jp-gpuslice-text',
      buttons: [
        Dialog.cancelButton({ label: options.trans.__('Cancel') }),
        Dialog.okButton({ label: options.accept })
      ]
    });
    this.addClass('jp-gpuslice-dialog');
    this._form = body;
    this._apply = options.apply;
  }

  resolve(index?: number): void {
    const accepts = index === undefined || index === 1;
    if (!accepts) {
      super.resolve(index);
      return;
    }
    const request = this._form.getValue();
    if (!request || this._form.busy) {
      return;
    }
    this._form.started();
    this._apply(request).then(
      () => super.resolve(1),
      (error: unknown) => this._form.failed(asProblem(error))
    );
  }

  private readonly _form: SliceDialogBody;
  private readonly _apply: (request: string) => Promise<void>;
}

class SliceDialogBody extends ReactWidget {
  constructor(options: SliceDialog.IOptions) {
    super();
    this._options = options;
    this._value = options.request;
  }

  /** The request as it stands in the field. */
  getValue(): string {
    return this._value.trim();
  }

  busy = false;
  problem: IProblem | null = null;

  get redraw(): ISignal<this, void> {
    return this._redraw;
  }

  get value(): string {
    return this._value;
  }

  write(request: string): void {
    this._value = request;
    this.problem = null;
    this._redraw.emit();
  }

  started(): void {
    this.busy = true;
    this.problem = null;
    this._redraw.emit();
  }

  failed(problem: IProblem): void {
    this.busy = false;
    this.problem = problem;
    this._redraw.emit();
  }

  protected render(): JSX.Element {
    return <Body widget={this} options={this._options} />;
  }

  private readonly _options: SliceDialog.IOptions;
  private readonly _redraw = new Signal<this, void>(this);
  private _value: string;
}

function Body(props: {
  widget: SliceDialogBody;
  options: SliceDialog.IOptions;
}): JSX.Element {
  const { widget, options } = props;
  const { model, trans, kernelId, note } = options;
  const [, redraw] = useReducer((n: number) => n + 1, 0);
  useEffect(() => {
    const changed = () => redraw();
    widget.redraw.connect(changed);
    return () => {
      widget.redraw.disconnect(changed);
    };
  }, [widget]);
  const [own] = kernelId ? leasesOfKernel(model.state.leases, kernelId) : [];
  return (
    <div className="jp-gpuslice-dialog-body">
      <RequestField
        model={model}
        trans={trans}
        value={widget.value}
        onChange={request => widget.write(request)}
        kernelId={kernelId}
        own={own ?? null}
        problem={widget.problem}
        disabled={widget.busy}
      />
      <p className="jp-gpuslice-note">{note}</p>
    </div>
  );
}
