package main

import (
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker"
)

// setting is one configuration key. config.settings lists all keys. A test compares docs/configuration.md with that
// list.
type setting struct {
	key      string
	def      string // default value
	meaning  string
	commands []string // commands that have a flag for the setting; "" means all commands
	short    string   // one-letter form of the flag, or ""
	set      func(value string) error
}

// flag returns the name of the setting's flag.
func (s *setting) flag() string {
	section, name, found := strings.Cut(s.key, ".")
	if !found || section == "tls" { // a flag leaves out a section that is a command
		name = s.key
	}
	return strings.NewReplacer("_", "-", ".", "-").Replace(name)
}

// env returns the name of the setting's environment variable.
func (s *setting) env() string {
	return "BOXFLEET_" + strings.ToUpper(strings.ReplaceAll(s.key, ".", "_"))
}

const insecureKey = "up.insecure"

// Values of setting.commands: the commands that have a flag for a setting.
var (
	everyCommand     = []string{""}
	serverCommands   = []string{"up", "coordinator", "worker"}
	onlyUp           = []string{"up"}
	onlyCoordinator  = []string{"coordinator"}
	onlyWorker       = []string{"worker"}
	upAndCoordinator = []string{"up", "coordinator"}
	upAndWorker      = []string{"up", "worker"}
	storageSet       = []string{"set"} // boxfleet storage set
)

// settings returns every setting. Setting a value writes it to c.
func (c *config) settings() []setting {
	return slices.Concat(c.commonSettings(), c.loginSettings(), c.upSettings(), c.coordinatorSettings(),
		c.storageSettings(),
		c.historySettings(), c.hostSettings(), c.imageSettings(), c.accessSettings(), c.limitSettings(), c.networkSettings())
}

// commonSettings are the settings of every command.
func (c *config) commonSettings() []setting {
	return []setting{
		{"nats", "",
			"URLs of the NATS servers, separated by commas; default: the server of the `boxfleet up` on this machine, " +
				"else nats://127.0.0.1:4222",
			everyCommand, "", text(&c.NATS)},
		{"tenant", protocol.DefaultTenant,
			"tenant to work in; if this key is not set and creds names a tenant, that tenant",
			everyCommand, "", text(&c.Tenant)},
		{"nats_user", "",
			"name of the NATS user, which the fleet records as the actor of requests; default: the user that creds " +
				"names",
			everyCommand, "", text(&c.NATSUser)},
		{"output", outputText, "output format: text or json",
			everyCommand, "o", oneOf(&c.Output, outputText, outputJSON)},
		{"deadline", "0s",
			"how long a client command may take; after that time the fleet continues the command's request, but " +
				"boxfleet run deletes its sandbox; 0s: no limit",
			everyCommand, "", parsed(&c.Deadline, notNegative)},
		{"log_level", "warn", "log messages of this level and above to stderr: debug, info, warn or error",
			everyCommand, "", oneOf(&c.LogLevel, logLevels...)},
		{"data_dir", "",
			"directory where up keeps its data and where clients find its address; default: $XDG_DATA_HOME/boxfleet, " +
				"else ~/.local/share/boxfleet",
			everyCommand, "", text(&c.DataDir)},
		{"health_listen", "",
			"HOST:PORT where a server command serves /healthz (status 200 while its main loops turn) and /readyz (200 " +
				"while it can do its work), else 503, with the reason; default: not served",
			serverCommands, "", text(&c.HealthListen)},
	}
}

// loginSettings say how a process identifies itself to NATS, and how it checks the servers. `up` uses none of them.
func (c *config) loginSettings() []setting {
	return []setting{
		{"creds", "", "NATS credentials file; read again for every connection attempt",
			everyCommand, "", text(&c.Creds)},
		{"nkey", "", "file with the seed of an NKey, for NATS servers that list keys of users; read again for every " +
			"connection attempt",
			everyCommand, "", text(&c.NKey)},
		{"login", "", "name of a user of NATS that has a password, in password or password_file",
			everyCommand, "", text(&c.Login)},
		{"password", "", "password of login; it has no flag, because other users of the machine could see it",
			nil, "", text(&c.Password)},
		{"password_file", "",
			"file with the password of login, used if password is not set; read again for every connection attempt",
			everyCommand, "", text(&c.PasswordFile)},
		{"token", "", "token for NATS; other users of the machine can see a flag, so prefer the file or the environment",
			everyCommand, "", text(&c.Token)},
		{"token_file", "",
			"file with the token for NATS, used if token is not set; read again for every connection attempt",
			everyCommand, "", text(&c.TokenFile)},
		{"tls.ca", "", "PEM file with the certificates of the CAs that sign for the NATS servers; read again for every " +
			"connection attempt; default: the CAs that the machine trusts; any key below tls requires TLS of every server",
			everyCommand, "", text(&c.TLS.CA)},
		{"tls.cert", "", "PEM file with the certificate that NATS servers demand; needs tls.key; read again like tls.ca",
			everyCommand, "", text(&c.TLS.Cert)},
		{"tls.key", "", "PEM file with the private key of tls.cert; read again like tls.ca",
			everyCommand, "", text(&c.TLS.Key)},
		{"tls.server_name", "", "name that the certificate of each NATS server must have; default: the host in its URL",
			everyCommand, "", text(&c.TLS.ServerName)},
		{"tls.handshake_first", "false",
			"true: begin each connection with the TLS handshake; needs handshake_first: true on every NATS server",
			everyCommand, "", parsed(&c.TLS.HandshakeFirst, strconv.ParseBool)},
	}
}

// upSettings are the settings of `up` itself.
func (c *config) upSettings() []setting {
	return []setting{
		{"up.ballast", "64MiB",
			"disk space that up reserves in its data directory, at most a twentieth of the disk, so that it can " +
				"still record ends and deletes when the disk is full",
			onlyUp, "", parsed(&c.Ballast, protocol.ParseBytes)},
		{"up.listen", defaultListen,
			"HOST or HOST:PORT where up's NATS listens; without a port, up chooses a free one; up fails if a port " +
				"that you set is in use, but chooses a free one if only the default is in use",
			onlyUp, "", text(&c.Listen)},
		{"up.listen_insecurely", "false",
			"true: up may listen on an address that other machines can reach; its NATS has no TLS, so anyone on the " +
				"network path can read and change messages; with insecure, they can also read the token, which " +
				"gives access to every host",
			onlyUp, "", parsed(&c.ListenInsecurely, strconv.ParseBool)},
		{insecureKey, "false",
			"true: up uses one token, which permits everything, instead of credentials; refused if the deployment " +
				"ever had credentials, because its messages must be signed from then on",
			onlyUp, "", parsed(&c.Insecure, strconv.ParseBool)},
	}
}

// coordinatorSettings are the settings of a coordinator.
func (c *config) coordinatorSettings() []setting {
	k := &c.Coordinator
	return []setting{
		{"coordinator.name", "",
			"id of this coordinator, unique in the fleet; default: the machine's name and a random suffix",
			onlyCoordinator, "", text(&k.Name)},
		{"coordinator.cleanup_ttl", "360h0m0s",
			"delete a sandbox that has been stopped or failed for this time, and purge the history of a sandbox that " +
				"has been deleted for this time",
			onlyCoordinator, "", parsed(&k.CleanupTTL, positive)},
		{"coordinator.host_forget_after", "0s",
			"forget a host that has been lost for this time, as boxfleet host forget does; 0s: never",
			onlyCoordinator, "", parsed(&k.ForgetAfter, notNegative)},
		{"coordinator.defaults", "",
			"YAML file with the sandbox defaults of each tenant; the key * stands for every tenant; see docs/spec.md",
			upAndCoordinator, "", text(&k.Defaults)},
		{"coordinator.quotas", "",
			"YAML file with the quota of each tenant; the key * stands for every tenant without an entry; read again when " +
				"it changes; the file of the leading coordinator applies; see docs/quotas.md",
			upAndCoordinator, "", text(&k.Quotas)},
		{"coordinator.secrets_key", "",
			"file with the fleet's keys for secrets, which boxfleet auth init makes; the same for every coordinator; read at " +
				"the start; default: this coordinator serves no secrets; up uses the keys of its own authority; see " +
				"docs/secrets.md",
			onlyCoordinator, "", text(&k.SecretsKey)},
		{"coordinator.max_active_execs", "1000",
			"how many execs of one sandbox may be active, 1 to 8192; more are refused with resource_exhausted",
			nil, "", parsed(&k.MaxActiveExecs, between(1, protocol.MaxActiveExecs))},
		{"coordinator.upload_max_bytes", "4GiB",
			"size limit of one uploaded tree; a larger upload is refused with invalid_argument",
			nil, "", parsed(&k.UploadMaxBytes, positiveBytes)},
		{"coordinator.output_sandbox_bytes", "0B",
			"how much output is kept for each sandbox; beyond this size, its oldest output is removed; 0: an eighth " +
				"of log_max_bytes",
			onlyCoordinator, "", parsed(&k.OutputSandboxBytes, protocol.ParseBytes)},
		{"coordinator.output_tenant_bytes", "0B",
			"how much output is kept for each tenant; beyond this size, the oldest output of its sandboxes with the " +
				"most output is removed; 0: no limit except log_max_bytes",
			onlyCoordinator, "", parsed(&k.OutputTenantBytes, protocol.ParseBytes)},
	}
}

// storageSettings are the settings of the streams and tables in NATS.
func (c *config) storageSettings() []setting {
	k := &c.Coordinator
	sizeLimit := func(key, meaning string, into *protocol.Bytes) setting {
		return setting{key, "", meaning, storageSet, "", optional(parsed(into, someBytes))}
	}
	return []setting{
		{"coordinator.replicas", "",
			"replicas of each stream, 1, 3 or 5; set it on the first coordinator of a cluster; default: existing " +
				"streams stay as they are, new ones get 1; to add replicas later, run boxfleet storage grow",
			onlyCoordinator, "", optional(parsed(&k.Replicas, copies))},
		sizeLimit("coordinator.event_max_bytes",
			"size limit of the event log; the last eighth of this size, at most 1GiB, is reserved for ends and "+
				"deletes: when only this reserve is free, new work is refused with log_full; default: an existing "+
				"log keeps its limit, a new one gets 8GiB",
			&k.EventMaxBytes),
		{"coordinator.log_max_age", "",
			"how long output is kept; default: an existing stream keeps its limit, a new one gets 360h",
			storageSet, "", optional(parsed(&k.LogMaxAge, positive))},
		sizeLimit("coordinator.log_max_bytes",
			"how much output is kept in total; beyond this size, the oldest output is removed; default: an existing "+
				"stream keeps its limit, a new one gets 8GiB",
			&k.LogMaxBytes),
		{"coordinator.blob_max_age", "",
			"how long an uploaded tree is kept; a tree that a sandbox still waits for is kept longer; default: an " +
				"existing stream keeps its limit, a new one gets 24h",
			storageSet, "", optional(parsed(&k.BlobMaxAge, positive))},
		sizeLimit("coordinator.blob_max_bytes",
			"size limit of all uploaded trees; further uploads are refused; default: an existing stream keeps its "+
				"limit, a new one gets 4GiB",
			&k.BlobMaxBytes),
		sizeLimit("coordinator.image_max_bytes",
			"size limit of all imported image files; further imports are refused; default: an existing stream keeps "+
				"its limit, a new one gets 16GiB",
			&k.ImageMaxBytes),
		sizeLimit("coordinator.segment_max_bytes",
			"size limit of the compressed older parts of histories; if it is reached, older messages stay in the "+
				"event log; default: an existing stream keeps its limit, a new one gets 8GiB",
			&k.SegmentMaxBytes),
		sizeLimit("coordinator.table_max_bytes",
			"size limit of each table of ids, names, snapshots and imported images; writes to a full table are "+
				"refused; default: an existing table keeps its limit, a new one gets 1GiB",
			&k.TableMaxBytes),
		{"coordinator.requests", "",
			"how many requests may be queued; more are refused with resource_exhausted; default: an existing queue " +
				"keeps its limit, a new one gets 100000",
			storageSet, "", optional(parsed(&k.Requests, between(1, math.MaxInt32)))},
	}
}

// historySettings say which messages of a sandbox's history stay in the event log. All other messages are compressed
// and moved out of the log.
func (c *config) historySettings() []setting {
	k := &c.Coordinator
	return []setting{
		{"coordinator.history_keep", "1000",
			"how many of the newest messages of a sandbox's history always stay in the event log, at least 1",
			nil, "", parsed(&k.HistoryKeep, between(1, math.MaxInt32))},
		{"coordinator.history_batches", "5000",
			"when a live sandbox has more than this many messages in the event log beyond history_keep, compress " +
				"these older messages and move them out of the log; at least 1",
			nil, "", parsed(&k.HistoryBatches, between(1, math.MaxInt32))},
		{"coordinator.history_bytes", "4MiB",
			"like history_batches, for the size of the messages beyond history_keep",
			nil, "", parsed(&k.HistoryBytes, someBytes)},
		{"coordinator.history_max_age", "0s",
			"how long older messages of a history are kept after they were moved out of the event log; 0s: until the " +
				"whole history is purged",
			nil, "", parsed(&k.HistoryMaxAge, notNegative)},
	}
}

// hostSettings are the settings that say what a worker offers of its host.
func (c *config) hostSettings() []setting {
	w := &c.Worker
	return []setting{
		{"worker.name", "",
			"id of this worker, unique in the fleet; never change the id of a host's worker; default: the machine's " +
				"name",
			onlyWorker, "", text(&w.Name)},
		{"worker.engine", "", "address of the Docker Engine; default: $DOCKER_HOST, else the local socket",
			upAndWorker, "", text(&w.Engine)},
		{"worker.state_dir", "",
			"absolute path of the directory with one directory for each sandbox; default: the directory worker in " +
				"data_dir",
			onlyWorker, "", text(&w.StateDir)},
		{"worker.supervisor", "", "path of the boxfleet-supervisor binary; default: next to the boxfleet binary",
			upAndWorker, "", text(&w.Supervisor)},
		{"worker.slots", "100", "maximum number of sandboxes on the host; 0: 100",
			upAndWorker, "", parsed(&w.Slots, strconv.Atoi)},
		{"worker.cpu", "0",
			"CPU cores to offer; the specs of sandboxes may request more in total, and the sandboxes then share the " +
				"cores; 0: all cores of the host",
			upAndWorker, "", parsed(&w.CPU, parseFloat)},
		{"worker.memory", "0B", "memory to offer to sandboxes, such as 4GiB; 0: nine tenths of the host's memory",
			upAndWorker, "", parsed(&w.Memory, protocol.ParseBytes)},
		{"worker.labels", "", "labels of the host, as K=V",
			onlyWorker, "", list(&w.Labels)},
		{"worker.defaults", "", "YAML file with this worker's sandbox defaults; see docs/spec.md",
			onlyWorker, "", text(&w.Defaults)},
	}
}

// imageSettings are the settings that say how a worker pulls and removes images.
func (c *config) imageSettings() []setting {
	w := &c.Worker
	return []setting{
		{"worker.images.pull_stall", "2m0s", "abort an image pull that makes no progress for this time",
			onlyWorker, "", parsed(&w.Images.PullStall, positive)},
		{"worker.images.pre_pull", "",
			"images to pull in the background, before a sandbox needs them, and to keep",
			upAndWorker, "", list(&w.Images.PrePull)},
		{"worker.images.high_water", "85",
			"when more than this percentage of the bytes or of the inodes of the engine's file system is in use, the " +
				"worker removes unused images that it pulled; 100: never",
			onlyWorker, "", parsed(&w.Images.HighWater, strconv.Atoi)},
		{"worker.images.low_water", "75",
			"the worker stops removing images below this percentage, which is at most high_water",
			onlyWorker, "", parsed(&w.Images.LowWater, strconv.Atoi)},
		{"worker.images.max_bytes", "0B",
			"size limit of all images that the worker pulled; beyond this size, it removes unused ones; 0: no limit",
			onlyWorker, "", parsed(&w.Images.MaxBytes, protocol.ParseBytes)},
		{"worker.images.check_cached", "false",
			"true: before each use of an image that was pulled, ask its registry whether it may be used; false: a " +
				"sandbox may use any image that is already on the host",
			onlyWorker, "", parsed(&w.Images.CheckCached, strconv.ParseBool)},
		{"worker.images.registries", "docker.io,public",
			"registries to pull images from: docker.io, HOST or HOST:PORT as in image references, or public, which " +
				"stands for every registry at a public address; a registry on a private network must be named",
			upAndWorker, "", list(&w.Images.Registries)},
		{"worker.images.docker_config", "",
			"directory of the Docker configuration with registry credentials; default: $DOCKER_CONFIG, else " +
				"~/.docker",
			upAndWorker, "", text(&w.Images.DockerConfig)},
	}
}

// accessSettings are the settings that say what sandboxes may use of a host.
func (c *config) accessSettings() []setting {
	w := &c.Worker
	return []setting{
		{"worker.mounts.allow", "",
			"host directories that sandboxes may mount: PATH or PATH:ro read-only, PATH:rw also writable; default: " +
				"none",
			upAndWorker, "", list(&w.AllowMounts)},
		{"worker.tools", "",
			"built-in tools that sandboxes may have, with their files and credentials from tools_home: claude, codex, " +
				"opencode, git, uv, npm, apt, or all; default: none",
			upAndWorker, "", list(&w.Tools)},
		{"worker.tools_home", "",
			"home directory with the files and credentials of the tools; default: the home of the worker's user",
			upAndWorker, "", text(&w.ToolsHome)},
		{"worker.profiles", "hardened", "capability profiles that sandboxes may choose: hardened, standard",
			upAndWorker, "", list(&w.Profiles)},
		{"worker.service_profiles", "hardened,standard",
			"capability profiles that services may choose; without standard, a service must name hardened",
			upAndWorker, "", someOf(&w.ServiceProfiles, protocol.ProfileHardened, protocol.ProfileStandard)},
		{"worker.runtimes", "",
			"OCI runtimes of the engine that sandboxes may choose; default: only the engine's default runtime",
			upAndWorker, "", list(&w.Runtimes)},
	}
}

// limitSettings are the limits that a worker enforces.
func (c *config) limitSettings() []setting {
	w := &c.Worker
	return []setting{
		{"worker.max_disk", "95",
			"when more than this percentage of a disk of the engine or the worker is in use, the host takes no new " +
				"sandboxes",
			onlyWorker, "", parsed(&w.Watermarks.Disk, strconv.Atoi)},
		{"worker.max_inodes", "95", "like max_disk, for the inodes of these disks",
			onlyWorker, "", parsed(&w.Watermarks.Inodes, strconv.Atoi)},
		{"worker.max_memory", "97",
			"like max_disk, for the host's memory; the kernel estimates how much is in use",
			onlyWorker, "", parsed(&w.Watermarks.Memory, strconv.Atoi)},
		{"worker.max_pids", "90",
			"like max_disk, for the number of processes and threads that the host's kernel allows",
			onlyWorker, "", parsed(&w.Watermarks.PIDs, strconv.Atoi)},
		{"worker.disk_low", "0B",
			"when a disk of the engine or the worker has less free space than this, stop the sandbox that fills the " +
				"disk, with reason disk_full; at most half the disk; 0: a tenth of the disk, at most 2GiB",
			upAndWorker, "", parsed(&w.DiskLow, protocol.ParseBytes)},
		{"worker.disk_reserve", "0B",
			"disk space that the worker reserves, at most a tenth of its disk, to write records and delete " +
				"sandboxes when the disk is full; 0: a fiftieth of the disk, at most 32MiB",
			upAndWorker, "", parsed(&w.DiskReserve, protocol.ParseBytes)},
		{"worker.output_burst", "256MiB",
			"how much output one sandbox may publish before output_rate limits it; the allowance grows back at " +
				"output_rate; output waits on the host's disk, so processes are never slowed down",
			onlyWorker, "", parsed(&w.OutputBurst, someBytes)},
		{"worker.output_rate", "8MiB",
			"how much output per second one sandbox may publish once it has used up output_burst",
			onlyWorker, "", parsed(&w.OutputRate, someBytes)},
		{"worker.crash_window", "5m0s",
			"a primary command or a service that keeps ending for this time, without one run of at least " +
				"crash_guard, is not restarted: the sandbox or the service fails",
			onlyWorker, "", parsed(&w.CrashWindow, positive)},
		{"worker.crash_guard", "30s",
			"a run of a command or service that lasts this long ends the series of failures that crash_window " +
				"measures",
			onlyWorker, "", parsed(&w.CrashGuard, positive)},
		{"worker.reap_dry_run", "false",
			"true: report leftovers of ended sandboxes, and network bridges without a network, instead of removing " +
				"them",
			onlyWorker, "", parsed(&w.ReapDryRun, strconv.ParseBool)},
	}
}

// networkSettings are the settings of the networks of sandboxes.
func (c *config) networkSettings() []setting {
	w := &c.Worker
	return []setting{
		{"worker.network_pool", "10.201.0.0/16", "IPv4 prefix from which each sandbox gets a subnet",
			upAndWorker, "", text(&w.NetworkPool)},
		{"worker.firewall", "required",
			"required: take no sandbox unless nftables isolates its network; off: do not isolate networks, and take " +
				"only sandboxes with network internet",
			upAndWorker, "", oneOf(&w.Firewall, firewallRequired, protocol.FirewallOff)},
		{"worker.deny_networks", "", "IPv4 ranges that no sandbox may connect to, whatever its spec allows; default: none",
			upAndWorker, "", list(&w.DenyNetworks)},
		{"worker.allow_networks", "",
			"private IPv4 ranges that specs may allow with network: allow; default: none",
			upAndWorker, "", list(&w.AllowNetworks)},
		{"worker.connections", strconv.Itoa(worker.DefaultConnections),
			"how many connections to addresses outside its network one sandbox may have at a time, at least 64",
			upAndWorker, "", parsed(&w.Connections, between(64, math.MaxInt32))},
		{"worker.pids", strconv.Itoa(worker.DefaultMostPIDs),
			"largest number of processes and threads that a spec may request for one container, 2048 or more",
			upAndWorker, "", parsed(&w.PIDs, between(protocol.DefaultPIDs, protocol.MaxPIDs))},
		{"worker.ports", worker.DefaultPorts,
			"loopback ports of the host that sandboxes may publish, as FIRST-LAST",
			upAndWorker, "", text(&w.Ports)},
		{"worker.dns", "", "IPv4 name servers for sandboxes; default: the host's, except metadata addresses",
			upAndWorker, "", list(&w.DNS)},
	}
}
