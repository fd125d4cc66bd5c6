//! The engine against a small made-up kernel.

mod actions;
mod boost;
mod changes;
mod draft;
mod ended;
mod exits;
mod fixture;
mod followed;
mod gone;
mod guest_kprobes;
mod hits;
mod jumps;
mod module_jumps;
mod modules;
mod oops;
mod placement;
mod properties;
mod random;
mod refusals;
mod returns;
mod rings;
mod steps;
mod switches;
mod under_way;
mod watch;
mod ways;
