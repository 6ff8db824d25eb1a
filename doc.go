// Package boxfleet holds only the tests that keep the repository in shape: who may import whom, and whether the
// documents match the code. Start with README.md; ARCHITECTURE.md is the map.
package boxfleet
