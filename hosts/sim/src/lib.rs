//! A modelled host in virtual time: production code above a modelled machine and link.

#![forbid(unsafe_code)]
