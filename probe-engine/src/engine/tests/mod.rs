//! The engine against a small made-up kernel.

mod fixture;
mod gone;
mod hits;
mod placement;
mod properties;
mod refusals;
