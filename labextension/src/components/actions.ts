/** What views do outside themselves; the plugins give it to them. */
export interface IViewActions {
  /** Open a kernel's notebook or console. */
  openDocument(path: string): void;
  /** Ask, then restart a kernel. */
  restartKernel(kernelId: string, name: string): Promise<void>;
  /** Ask whether something that loses state shall be done. */
  confirm(options: {
    title: string;
    body: string;
    accept: string;
  }): Promise<boolean>;
}
