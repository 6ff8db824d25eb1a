// Package part runs the parts of a deployment as processes of a measuring program. Each part runs the program's own
// binary, with a role in an environment variable. The program sends commands to a part's stdin, one per line, and gets
// one line of JSON for each command. When the program ends for any reason, the pipe to the part's stdin closes, and the
// part exits.
package part
