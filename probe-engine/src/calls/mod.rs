//! The calls that detours of return probes follow: what the guest keeps of them in the arena's data.
//!
//! A detour puts the address of a piece of code of ours, the *trampoline*, in the place of a call's return address,
//! and what was there into a table. A call is known by where on the stack its return address is: no two calls under
//! way have that in common, but for functions that jump into each other. Those form a stack: the call that began last
//! returns first, whatever the guest's own tools have put there in between.

pub mod layout;
mod table;
#[cfg(test)]
mod tests;

pub use table::{Call, Calls, Tally, Task};
