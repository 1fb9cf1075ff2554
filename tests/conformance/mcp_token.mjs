// Loaded into the official suite, which has no option for headers: every request gets the server's token.
import http from 'node:http';
import { createRequire } from 'node:module';

const authorization = `Bearer ${process.env.MCP_TOKEN}`;
const undici = createRequire(process.argv[1])('undici');
const authorized = (headers) =>
  Array.isArray(headers) ? [...headers, 'authorization', authorization] : { ...headers, authorization };
undici.setGlobalDispatcher(
  new undici.Agent().compose(
    (dispatch) => (options, handler) => dispatch({ ...options, headers: authorized(options.headers) }, handler),
  ),
);
const request = http.request;
http.request = (options, ...more) => request({ ...options, headers: authorized(options.headers) }, ...more);
