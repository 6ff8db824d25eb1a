// Package part runs the parts of a deployment as processes of the program that measures them: the same
// binary again, in a role that an environment variable carries. The program speaks to a part through
// its stdin, one command a line, and gets a line of JSON for each; the end of stdin is the end of the program,
// however that came.
package part
