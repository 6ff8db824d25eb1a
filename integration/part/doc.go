// Package part runs the parts of a deployment as processes of a measuring program. Each part is the program's own
// binary, started with a role in an environment variable. The program sends a part commands through its stdin, one per
// line, and gets one line of JSON for each. When the program ends, however that happens, its end of stdin closes and
// the part exits.
package part
