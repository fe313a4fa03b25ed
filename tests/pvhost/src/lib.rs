//! A host in user space.
