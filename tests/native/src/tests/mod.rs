mod kernel;
mod named;
mod random;
