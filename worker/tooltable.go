package worker

// toolMode is what a sandbox may do with a tool's files.
type toolMode int

const (
	toolReadOnly toolMode = iota
	toolReadWrite
	toolSocket // connect to it
)

// toolMount is a file, directory or socket of the worker's user that tools share.
type toolMount struct {
	name string
	// source is below the home directory of the worker's user; that of the socket is in the
	// environment variable SSH_AUTH_SOCK of the worker.
	source string
	// target is below the home directory of the sandbox's user, or absolute; "": the same absolute
	// path as the source's.
	target string
	mode   toolMode
	file   bool // it is a file, not a directory
	// shadow says that the sandbox gets a copy, of its own, where the directory holds links that lead
	// out of it: bound as it is they would lead elsewhere in the sandbox. Caches, which are large and
	// full of such links, are bound as they are.
	shadow bool
	env    string // variable that tells programs the target; "": they look there by themselves
}

// toolUse is a mount that a tool has.
type toolUse struct {
	mount    string
	required bool // without it the tool is refused; else it is left out where the host has none
}

// tool is a builtin tool.
type tool struct {
	name string
	uses []toolUse
}

// toolMounts and tools are all that is known of builtin tools.
var toolMounts = []toolMount{
	{name: ".claude", source: ".claude", target: ".claude", mode: toolReadWrite, shadow: true},
	{name: ".claude.json", source: ".claude.json", target: ".claude.json", mode: toolReadWrite, file: true},
	{name: ".codex", source: ".codex", target: ".codex", mode: toolReadWrite, shadow: true},
	{name: ".agents", source: ".agents", target: ".agents", mode: toolReadWrite, shadow: true},
	{name: "opencode-config", source: ".config/opencode", target: ".config/opencode", mode: toolReadWrite, shadow: true},
	{name: "opencode-data", source: ".local/share/opencode", target: ".local/share/opencode", mode: toolReadWrite, shadow: true},
	{name: "gh-auth", source: ".config/gh", target: ".config/gh", mode: toolReadOnly, shadow: true},
	{name: "ssh-agent", target: "/ssh-agent", mode: toolSocket, env: "SSH_AUTH_SOCK"},
	// Read-only: who could write it could make the host's user trust another server.
	{name: "ssh-known-hosts", source: ".ssh/known_hosts", target: ".ssh/known_hosts", mode: toolReadOnly, file: true},
	{name: "uv-cache", source: ".cache/uv", target: ".cache/uv", mode: toolReadWrite},
	// Interpreters know where they were installed.
	{name: "uv-python", source: ".local/share/uv/python", mode: toolReadWrite, env: "UV_PYTHON_INSTALL_DIR"},
	{name: "npm", source: ".npm", target: ".npm", mode: toolReadWrite},
	{name: "apt", source: ".cache/boxfleet-apt", target: "/var/cache/apt/archives", mode: toolReadWrite},
}

var tools = []tool{
	{"claude", []toolUse{{".claude", true}, {".claude.json", true}}},
	{"codex", []toolUse{{".codex", true}, {".agents", false}}},
	{"opencode", []toolUse{{"opencode-config", false}, {"opencode-data", false}, {".agents", false}}},
	{"git", []toolUse{{"ssh-agent", false}, {"gh-auth", false}, {"ssh-known-hosts", false}}},
	{"uv", []toolUse{{"uv-cache", false}, {"uv-python", false}}},
	{"npm", []toolUse{{"npm", false}}},
	{"apt", []toolUse{{"apt", false}}},
}
