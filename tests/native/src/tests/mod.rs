mod calls;
mod functions;
mod jump;
mod kernel;
mod named;
mod percpu;
mod random;
mod rings;
