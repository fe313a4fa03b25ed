//! The benchmarks: running the measuring program, summing its samples up, and the report in its three shapes.

mod charts;
mod family;
mod figures;
mod page;
mod policies;
mod program;
mod results;
mod row;
mod seeds;
mod sheets;

pub use page::html;
pub use policies::nested as policies_nested;
pub use program::{Ended, build, measure};
pub use results::Results;
