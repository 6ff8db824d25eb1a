// Package boxfleet holds nothing but the test of the architecture: which package may know which.
// README.md is the way in, ARCHITECTURE.md the map.
package boxfleet
