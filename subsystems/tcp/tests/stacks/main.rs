//! Stacks in virtual time, over the modelled network of `wave-wires`.

mod connections;
mod machine;
mod recovery;
mod strangers;
