import { LabIcon } from '@jupyterlab/ui-components';

import gpuSvg from '../style/icons/gpu.svg';

/** A card with a part of its chip cut out. */
export const gpuIcon = new LabIcon({
  name: 'jupyter-gpuslice:gpu',
  svgstr: gpuSvg
});
