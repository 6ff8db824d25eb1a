package hostfiles

// toolMode says what a sandbox may do with a tool's files.
type toolMode int

const (
	toolReadOnly toolMode = iota
	toolReadWrite
	toolSocket // the sandbox may connect to the socket
)

// toolMount is a file, directory or socket of the worker's user. Several tools may use the same toolMount.
type toolMount struct {
	name string
	// source is a path below the home directory of the worker's user. A socket has no source: its address comes from the
	// worker's environment variable SSH_AUTH_SOCK.
	source string
	// target is an absolute path, or a path below the home directory of the sandbox's user. "" means the absolute path
	// of the source.
	target string
	mode   toolMode
	file   bool // the source is a file, not a directory
	// If shadow is set, and the directory contains links to targets outside the directory, the sandbox gets a copy of
	// the directory. If the directory itself were mounted, these links would lead to other files in the sandbox. shadow
	// is not set for caches: they are large and have many such links, so they are mounted directly.
	shadow bool
	env    string // environment variable that tells programs the target; "": programs use the target by default
}

// toolUse is one mount of a tool.
type toolUse struct {
	mount    string
	required bool // if this mount is missing, the host refuses the tool; a missing optional mount is left out
}

type tool struct {
	name string
	uses []toolUse
}

// toolMounts and tools contain the whole definition of the builtin tools.
var toolMounts = []toolMount{
	{name: ".claude", source: ".claude", target: ".claude", mode: toolReadWrite, shadow: true},
	{name: ".claude.json", source: ".claude.json", target: ".claude.json", mode: toolReadWrite, file: true},
	{name: ".codex", source: ".codex", target: ".codex", mode: toolReadWrite, shadow: true},
	{name: ".agents", source: ".agents", target: ".agents", mode: toolReadWrite, shadow: true},
	{name: "opencode-config", source: ".config/opencode", target: ".config/opencode", mode: toolReadWrite, shadow: true},
	{
		name: "opencode-data", source: ".local/share/opencode", target: ".local/share/opencode", mode: toolReadWrite,
		shadow: true,
	},
	{name: "gh-auth", source: ".config/gh", target: ".config/gh", mode: toolReadOnly, shadow: true},
	{name: "ssh-agent", target: "/ssh-agent", mode: toolSocket, env: "SSH_AUTH_SOCK"},
	// Read-only, because a sandbox could otherwise make the host's user trust another server.
	{name: "ssh-known-hosts", source: ".ssh/known_hosts", target: ".ssh/known_hosts", mode: toolReadOnly, file: true},
	{name: "uv-cache", source: ".cache/uv", target: ".cache/uv", mode: toolReadWrite},
	// The target is the same path as on the host, because the interpreters contain the path of their installation.
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

// ToolNames lists the builtin tools.
func ToolNames() []string {
	var names []string
	for _, t := range tools {
		names = append(names, t.name)
	}
	return names
}

func findTool(name string) *tool {
	for i := range tools {
		if tools[i].name == name {
			return &tools[i]
		}
	}
	return nil
}

func findToolMount(name string) *toolMount {
	for i := range toolMounts {
		if toolMounts[i].name == name {
			return &toolMounts[i]
		}
	}
	return nil
}
