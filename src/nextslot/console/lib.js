// The one place that knows the vendored library: components, hooks, and markup by template strings.
export {
  h,
  html,
  render,
  createContext,
  useCallback,
  useContext,
  useEffect,
  useErrorBoundary,
  useLayoutEffect,
  useMemo,
  useRef,
  useState,
} from "./vendor/htm-preact.js";
