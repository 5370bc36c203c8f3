import type { INotebookModel } from '@jupyterlab/notebook';

/** The key of a notebook's metadata under which its request stands. */
export const METADATA_KEY = 'gpuslice';

/** What a notebook's metadata with that request in it is. */
export function withRequest(
  old: unknown,
  request: string
): { request: string } {
  const rest = typeof old === 'object' && old !== null ? old : {};
  return { ...rest, request };
}

/** The request that a notebook's metadata names, or null. */
export function readRequest(model: INotebookModel | null): string | null {
  const value: unknown = model?.getMetadata(METADATA_KEY);
  if (typeof value !== 'object' || value === null || !('request' in value)) {
    return null;
  }
  return typeof value.request === 'string' ? value.request : null;
}

/** Write the request into a notebook, for the kernels it starts from now on. */
export function writeRequest(model: INotebookModel, request: string): void {
  model.setMetadata(
    METADATA_KEY,
    withRequest(model.getMetadata(METADATA_KEY), request)
  );
}
