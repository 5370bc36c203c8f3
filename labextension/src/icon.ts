import { LabIcon } from '@jupyterlab/ui-components';

import gpuSvg from '../style/icons/gpu.svg';

/** A card with a part of its chip cut out. */
export const gpuIcon = new LabIcon({
  name: 'jupyter-gpuslice:gpu',
  svgstr: gpuSvg
});

/**
 * The same as an image in the notebooks' colour, for the launcher: its cards
 * for notebooks show images, to which no theme gives a colour.
 */
export const gpuIconUrl = `data:image/svg+xml,${encodeURIComponent(
  gpuSvg.replace('#616161', '#f37726')
)}`;
