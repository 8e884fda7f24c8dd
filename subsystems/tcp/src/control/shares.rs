//! Shares of a stack's tables: no program and no user takes so much that others find no room.
//!
//! A program may have three times as much as it leaves free, a user seven times as much. Alone, that is three quarters and
//! seven eighths of a table. So there is always room for a program that has little, and one at its limit gets more when others
//! release some.

use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use super::Stack;
use crate::context::Reason;
use crate::datapath::Datapath;

/// End of the system ports (RFC 6335): those below this one.
const SYSTEM_PORTS_END: u16 = 1024;

/// The owner of a process: windows of one program count together, as do programs of one user.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// The program, by its process id.
    pub program: u32,
    /// Its user.
    pub user: u32,
    /// Whether it may have ports below 1,024.
    pub has_system_ports: bool,
}

/// The tables of the stack that are shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Connection,
    Handshake,
    Listener,
}

/// Use of `N` tables by processes. A process is a window, by its number.
#[derive(Debug)]
pub struct Shares<const N: usize> {
    bounds: [u32; N],
    totals: [u32; N],
    /// Owner and use by process. A process without an owner is limited only by the tables.
    processes: Vec<(Option<Owner>, [u32; N])>,
}

impl<const N: usize> Shares<N> {
    /// Empty tables of these sizes.
    pub const fn new(bounds: [u32; N]) -> Shares<N> {
        Shares { bounds, totals: [0; N], processes: Vec::new() }
    }

    /// Adds a process with its owner.
    pub fn add_process(&mut self, process: u16, owner: Owner) {
        self.process(process).0 = Some(owner);
    }

    /// Removes a process, and releases all its entries.
    pub fn remove_process(&mut self, process: u16) {
        let (_, used) = core::mem::replace(self.process(process), (None, [0; N]));
        self.totals.iter_mut().zip(used).for_each(|(total, used)| *total -= used);
    }

    fn process(&mut self, process: u16) -> &mut (Option<Owner>, [u32; N]) {
        let at = usize::from(process);
        if at >= self.processes.len() {
            self.processes.resize(at + 1, (None, [0; N]));
        }
        &mut self.processes[at]
    }

    pub(super) fn owner(&self, process: u16) -> Option<Owner> {
        self.processes.get(usize::from(process)).and_then(|(owner, _)| *owner)
    }

    /// Processes that have an owner.
    pub(super) fn owners(&self) -> impl Iterator<Item = (u16, Owner)> {
        let all = self.processes.iter().zip(0..);
        all.filter_map(|((owner, _), process)| Some((process, (*owner)?)))
    }

    /// Whether a process may take `more` entries of a table.
    pub fn has_room(&self, process: u16, table: usize, more: u32) -> bool {
        let Some(free) = self.bounds[table].checked_sub(self.totals[table] + more) else {
            return false;
        };
        let Some(owner) = self.owner(process) else { return true };
        let sum = |is_counted: fn(&Owner, &Owner) -> bool| -> u64 {
            let all = self.processes.iter();
            let own =
                all.filter(|(other, _)| other.is_some_and(|other| is_counted(&owner, &other)));
            own.map(|(_, used)| u64::from(used[table])).sum::<u64>() + u64::from(more)
        };
        let of_program = sum(|one, other| (one.program, one.user) == (other.program, other.user));
        let of_user = sum(|one, other| one.user == other.user);
        of_program <= 3 * (u64::from(free) + 1) && of_user <= 7 * (u64::from(free) + 1)
    }

    /// Takes `count` entries of a table for a process.
    pub fn acquire(&mut self, process: u16, table: usize, count: u32) {
        self.totals[table] += count;
        self.process(process).1[table] += count;
    }

    /// Releases `count` entries of a table for a process.
    pub fn release(&mut self, process: u16, table: usize, count: u32) {
        self.totals[table] -= count;
        self.process(process).1[table] -= count;
    }
}

impl<F: AsRef<[u8]>, D: Datapath<F>> Stack<F, D> {
    /// Adds a process. It keeps this number until it is [`Released`](super::Action::Released).
    pub fn add_process(&mut self, process: u16, owner: Owner) {
        self.shares.add_process(process, owner);
        // Another process may have had the number.
        self.join(process, 0);
    }

    pub(super) fn has_room(&self, process: u16, kind: Kind) -> bool {
        self.shares.has_room(process, kind as usize, 1)
    }

    pub(super) fn acquire_share(&mut self, process: u16, kind: Kind) {
        self.shares.acquire(process, kind as usize, 1);
    }

    pub(super) fn release_share(&mut self, process: u16, kind: Kind) {
        self.shares.release(process, kind as usize, 1);
    }

    /// Whether a process may have a port; 0 is any port.
    pub(super) fn check_port(&self, process: u16, port: u16) -> Result<(), Reason> {
        let is_system = (1..SYSTEM_PORTS_END).contains(&port);
        match self.shares.owner(process) {
            Some(owner) if is_system && !owner.has_system_ports => Err(Reason::NotPermitted),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUND: u32 = 64;

    /// Takes as many entries as the process may have, and returns their number.
    fn fill(shares: &mut Shares<2>, process: u16) -> u32 {
        let mut taken = 0;
        while shares.has_room(process, 1, 1) {
            shares.acquire(process, 1, 1);
            taken += 1;
        }
        taken
    }

    #[test]
    fn a_greedy_program_and_a_greedy_user_leave_room_to_others() {
        let mut shares = Shares::new([1, BOUND]);
        let owners = [(1, 1), (1, 1), (2, 1), (3, 1), (4, 2), (4, 3)];
        for (process, (program, user)) in owners.into_iter().enumerate() {
            let owner = Owner { program, user, has_system_ports: false };
            shares.add_process(process as u16, owner);
        }
        // Two windows of one program, then other programs of its user, then another user.
        assert_eq!(fill(&mut shares, 0), 48);
        assert_eq!(fill(&mut shares, 1), 0);
        assert!(shares.has_room(2, 1, 8) && !shares.has_room(2, 1, 9));
        assert_eq!(fill(&mut shares, 2), 8, "all programs of a user together get seven eighths");
        assert_eq!(fill(&mut shares, 3), 0);
        assert_eq!(fill(&mut shares, 4), 6);
        assert_eq!(fill(&mut shares, 5), 2, "program 4 of another user is another program");
        assert_eq!(shares.totals[1], BOUND);

        shares.release(0, 1, 1);
        assert_eq!(fill(&mut shares, 0), 0, "released entries go to programs that have little");
        assert_eq!(fill(&mut shares, 5), 1);
        shares.remove_process(0);
        assert_eq!(shares.totals[1], BOUND - 47);
    }

    #[test]
    fn a_process_without_an_owner_is_limited_only_by_the_table() {
        let mut shares = Shares::new([1, BOUND]);
        assert_eq!(fill(&mut shares, 9), BOUND);
    }
}
