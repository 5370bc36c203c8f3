/** The ids of this extension's commands. */
export namespace CommandIDs {
  export const open = 'gpuslice:open';
  export const choose = 'gpuslice:choose-slice';
  export const release = 'gpuslice:release-slice';
  export const refresh = 'gpuslice:refresh';
  export const newNotebook = 'gpuslice:new-notebook';
}

/** The id of the sidebar's widget. */
export const SIDEBAR_ID = 'jp-gpuslice-sidebar';
