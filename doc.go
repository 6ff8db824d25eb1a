// Package boxfleet holds only tests of the repository itself: which package may import which, and whether the documents
// match the code. Start with README.md; ARCHITECTURE.md is the map.
package boxfleet
