import { commandsPlugin } from './plugins/commands';
import { launcherPlugin } from './plugins/launcher';
import { modelPlugin } from './plugins/model';
import { noticesPlugin } from './plugins/notices';
import { sidebarPlugin } from './plugins/sidebar';
import { statusPlugin } from './plugins/status';
import { toolbarPlugin } from './plugins/toolbar';

export { IGpuModel } from './tokens';
export type { IGpuState } from './tokens';
export type * from './types';

export default [
  modelPlugin,
  sidebarPlugin,
  commandsPlugin,
  toolbarPlugin,
  statusPlugin,
  noticesPlugin,
  launcherPlugin
];
