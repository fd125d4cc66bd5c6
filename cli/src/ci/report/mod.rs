//! Reports of jobs: lines for people, JSON, and JUnit's XML.

pub mod json;
pub mod junit;
pub mod text;
