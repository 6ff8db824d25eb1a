package doctor

// Severity says how urgent a finding is.
type Severity string

// The severities, from the mildest.
const (
	OK      Severity = "ok"      // nothing to do; only [Report.Worst] has this value
	Note    Severity = "note"    // worth knowing; nothing needs to be done
	Warning Severity = "warning" // may become an error, or already harms some work
	Error   Severity = "error"   // the fleet cannot do some of its work, or stores data less safely than configured
)

var order = map[Severity]int{OK: 0, Note: 1, Warning: 2, Error: 3}

// Code names a kind of finding. The codes are stable: programs may compare them.
type Code string

// The codes of findings. Each begins with its area.
const (
	AccessRefused Code = "access.refused"
	AccessDenied  Code = "access.denied"
	AccessExpires Code = "access.expires"
	AccessOpen    Code = "access.open"
	AccessHidden  Code = "access.hidden"

	AccessCertificateExpired Code = "access.certificate_expired"
	AccessCertificateExpires Code = "access.certificate_expires"

	NATSCertificateExpired Code = "nats.certificate_expired"
	NATSCertificateName    Code = "nats.certificate_name"
	NATSCertificateExpires Code = "nats.certificate_expires"

	NATSUnreachable Code = "nats.unreachable"
	NATSSettings    Code = "nats.settings"
	NATSPayload     Code = "nats.payload"

	CoordinatorSilent     Code = "coordinator.silent"
	CoordinatorMute       Code = "coordinator.mute"
	CoordinatorLeaderless Code = "coordinator.leaderless"
	CoordinatorAlone      Code = "coordinator.alone"
	CoordinatorRefused    Code = "coordinator.refused"
	CoordinatorExpires    Code = "coordinator.expires"
	CoordinatorKeyless    Code = "coordinator.no_fleet_key"
	CoordinatorKeys       Code = "coordinator.fleet_keys"
	CoordinatorKeyLost    Code = "coordinator.fleet_key_missing"
	CoordinatorKeyOld     Code = "coordinator.fleet_key_replaced"

	StorageProblem      Code = "storage.problem"
	StorageFilling      Code = "storage.filling"
	StorageUnreplicated Code = "storage.unreplicated"
	StorageSync         Code = "storage.sync"
	StorageDead         Code = "storage.dead"

	ClockCoordinator Code = "clock.coordinator"
	ClockHost        Code = "clock.host"
	ClockClient      Code = "clock.client"

	VersionCoordinator Code = "version.coordinator"
	VersionWorker      Code = "version.worker"
	VersionClient      Code = "version.client"
	VersionOld         Code = "version.old"
	VersionUnsupported Code = "version.unsupported"

	HostNone        Code = "host.none"
	HostLost        Code = "host.lost"
	HostSilent      Code = "host.silent"
	HostEngine      Code = "host.engine"
	HostUnisolated  Code = "host.unisolated"
	HostFirewallOff Code = "host.firewall_off"
	HostProblem     Code = "host.problem"
	HostFull        Code = "host.full"
	HostDisk        Code = "host.disk"
	HostLease       Code = "host.lease"
	HostExpires     Code = "host.expires"
	HostSeccomp     Code = "host.seccomp"
	HostPosture     Code = "host.posture"
	HostCordoned    Code = "host.cordoned"
	HostDraining    Code = "host.draining"
	HostDrainLate   Code = "host.drain_late"

	OwedPlacement Code = "owed.placement"
	OwedCreate    Code = "owed.create"
	OwedRestart   Code = "owed.restart"
	OwedStop      Code = "owed.stop"
	OwedDelete    Code = "owed.delete"
	OwedExec      Code = "owed.exec"
	OwedMore      Code = "owed.more"
)

// Kind describes the findings with one code.
type Kind struct {
	Code     Code
	Severity Severity
	Means    string // what is wrong, in general
	Do       string // the remedy; {subject} stands for the subject of the finding
}

// Kinds returns every kind of finding, in the order in which a report lists findings of equal severity.
func Kinds() []Kind { return append([]Kind(nil), kinds...) }

var kinds = []Kind{
	{AccessRefused, Error, "NATS refuses the credentials, or the client has none",
		"ask an operator for credentials (boxfleet auth add makes them), and name their file with --creds"},
	{AccessDenied, Error, "the credentials do not permit the questions of doctor",
		"use the credentials of an operator, fleet viewer, user or viewer: coordinators and workers may not ask; if NATS " +
			"has permissions of your own, check them against docs/rights.md"},
	{AccessExpires, Warning, "the credentials expire soon",
		"ask an operator for new credentials (boxfleet auth add makes them) before NATS refuses these"},
	{AccessOpen, Note, "the client has no credentials that say what it may do",
		"if others can reach NATS, give each person and role credentials of their own: see docs/credentials.md"},
	{AccessHidden, Note, "the credentials do not show a part of the fleet",
		"not visible with these credentials: ask an operator to run boxfleet doctor"},
	{AccessCertificateExpired, Error, "the certificate of the client has expired: servers that check it refuse the client",
		"make a new certificate, and replace {subject} and its key"},
	{AccessCertificateExpires, Warning, "the certificate of the client expires within 30 days",
		"make a new certificate, and replace {subject} and its key: no restart is needed"},

	{NATSCertificateExpired, Error, "a NATS server's certificate has expired, or is not valid yet: no client connects",
		"make a new certificate for {subject}, replace its files, and reload the server; or correct this machine's clock"},
	{NATSCertificateName, Error, "the certificate of a NATS server has another name than the client's URL",
		"use a URL with a name of the certificate, set tls.server_name to one, or make a certificate with the name"},
	{NATSCertificateExpires, Warning, "the certificate of a NATS server expires within 30 days",
		"make a new certificate for {subject}, replace its files, and reload the server: no restart is needed"},
	{NATSUnreachable, Error, "no NATS server answers",
		"check the URL (--nats), the network, and that the NATS servers or boxfleet up run"},
	{NATSSettings, Error, "the NATS server has settings with which Boxfleet cannot work",
		"change the setting on every NATS server as the message says, and reload the servers"},
	{NATSPayload, Error, "the NATS server of a coordinator accepts only messages that are too small",
		"set max_payload: 1MB, or remove max_payload, on every NATS server, and reload the servers"},

	{CoordinatorSilent, Error, "no coordinator answers, so nothing is decided and nothing can be read",
		"start a coordinator, or read the log and the page /readyz of those that run"},
	{CoordinatorMute, Error, "a coordinator answers, but left a question without an answer, so the report lacks a part",
		"repeat with a longer --deadline, if you set one; else read the logs of the coordinators"},
	{CoordinatorLeaderless, Error, "no coordinator leads, so no sandbox gets a host and no deadline is enforced",
		"wait 15 seconds and repeat; if none leads then, read the logs of the coordinators: they say why they cannot lead"},
	{CoordinatorAlone, Note, "streams have replicas, but only one coordinator runs",
		"run a second coordinator on another machine, so that the fleet survives the loss of this one"},
	{CoordinatorRefused, Warning, "a coordinator refused messages of the event log, because their writers are not proven",
		"find the keys of the writers in the log of {subject}, and revoke their credentials if nobody knows them"},
	{CoordinatorExpires, Warning, "the credentials of a coordinator expire soon",
		"make new ones with boxfleet auth add coordinator {subject} --again, and replace the file; a systemd unit needs a " +
			"restart"},
	{CoordinatorKeyless, Warning, "a coordinator lacks the fleet key for secrets that another one has",
		"copy the key's file from the coordinator that has it, name it in coordinator.secrets_key of {subject}, and " +
			"restart {subject}"},
	{CoordinatorKeys, Warning, "coordinators let clients seal secrets to different fleet keys",
		"give all coordinators the same file (boxfleet auth secrets-key --file writes it), and restart them; keep the " +
			"key of every version that boxfleet secret list -o json shows"},
	{CoordinatorKeyLost, Error, "a coordinator lacks a fleet key to which values of secrets are sealed",
		"put the line of this key back into the file that coordinator.secrets_key of {subject} names, and restart " +
			"{subject}; without the key, nobody can open the values: set these secrets again"},
	{CoordinatorKeyOld, Note, "values of secrets are sealed to a fleet key that was replaced",
		"keep the line of this key in the files of all coordinators until nothing is sealed to it: set these secrets " +
			"again, and delete sandboxes that were created before the key was replaced"},

	{StorageProblem, Error, "data is stored less safely than configured, or cannot be stored",
		"run boxfleet ping, which shows each stream, and follow the message; boxfleet storage grow repairs replicas"},
	{StorageFilling, Warning, "a store is filled to 80 % or more",
		"make room as the message says, before the store refuses writes"},
	{StorageUnreplicated, Warning, "the NATS servers form a cluster, but the streams have one replica",
		"run boxfleet storage grow --replicas 3, so that no loss of one server loses data"},
	{StorageSync, Note, "the streams have one replica on a server that may acknowledge before it writes to disk",
		"set sync_interval: always in the jetstream section of the NATS server, or use a cluster of 3 servers"},
	{StorageDead, Note, "some requests could not be processed and were set aside",
		"read why in the logs of the coordinators; NATS removes the messages of {subject} after 30 days"},

	{ClockCoordinator, Warning, "the clock of a coordinator differs by more than 5 s from that of the store",
		"synchronize the clock of that machine and of the NATS servers, for example with chrony"},
	{ClockHost, Warning, "the clock of a host differs by more than 5 s from that of the store",
		"synchronize the clock of the host of {subject}: programs in its sandboxes see the wrong time"},
	{ClockClient, Note, "the clock of this machine differs by more than 5 s from that of the store",
		"synchronize the clock of this machine: it may treat valid credentials and certificates as expired"},

	{VersionUnsupported, Error,
		"a worker's version is not supported, so its host gets no sandboxes; those there keep running",
		"finish the upgrade: run the same version of boxfleet on all coordinators and on the host of {subject}"},
	{VersionCoordinator, Warning, "the coordinators have different versions",
		"finish the upgrade: run one version of boxfleet on all coordinators"},
	{VersionWorker, Warning, "a worker has another version than the coordinator",
		"finish the upgrade: run the coordinator's version on the host of {subject}; its sandboxes keep running meanwhile"},
	{VersionClient, Note, "this program has another version than the coordinator",
		"use the coordinator's version if a command or a field is unknown"},
	{VersionOld, Note, "the coordinator is too old to answer all questions",
		"upgrade the coordinators, and repeat"},

	{HostNone, Warning, "the fleet has no host that is ready, so no sandbox can run",
		"start a worker on a machine with a Docker Engine: boxfleet worker --nats URL"},
	{HostLost, Error, "a host is lost: its lock has expired",
		"start the worker of {subject} again; if its machine never comes back, run boxfleet host forget {subject}"},
	{HostSilent, Error, "a host sends no heartbeats",
		"check the machine of {subject}, its worker's process and log, and its connection to NATS"},
	{HostEngine, Error, "the engine of a host does not answer",
		"on the host of {subject}, run systemctl status docker and docker network ls; if the engine runs but does not " +
			"answer, restart it: systemctl restart docker; containers live on only with live-restore, and those of other " +
			"ready sandboxes start again"},
	{HostUnisolated, Error, "a host cannot isolate the networks of sandboxes, so it takes none",
		"on the host of {subject}, give the worker root's rights and the kernel nftables: the worker's log says more"},
	{HostFirewallOff, Warning, "a host does not isolate the networks of its sandboxes: its firewall is turned off",
		"start the worker of {subject} with firewall: required, unless the network around the host isolates its sandboxes"},
	{HostProblem, Warning, "a host reports a problem",
		"follow the message, and read the log of the worker {subject}"},
	{HostFull, Warning, "a host takes no new sandboxes, because a resource is short",
		"free the resource on the host of {subject}, or add hosts; boxfleet host list shows what each host has left"},
	{HostDisk, Warning, "less than 15 % and less than 20 GiB of a host's disk are free",
		"make room on the disk of {subject}: remove images and old data, or lower worker.images.high_water"},
	{HostLease, Warning, "a worker renews the lock of its host late, and must soon stop its work",
		"check the connection from {subject} to NATS, and that JetStream answers quickly; the worker's log has each failure"},
	{HostExpires, Warning, "the credentials of a worker expire soon",
		"make new ones with boxfleet auth add worker {subject} --host ID --again (host list -o json has the ID), and " +
			"replace the file; a systemd unit needs a restart"},
	{HostSeccomp, Warning, "the engine of a host filters no system calls",
		"set the default seccomp profile in the engine's daemon.json on {subject}, and restart the engine"},
	{HostPosture, Note, "a host isolates its sandboxes less well than it could",
		"follow the message on {subject}: it matters most if sandboxes run code that you do not trust"},
	{HostCordoned, Note, "an operator keeps new sandboxes off a host",
		"run boxfleet host uncordon {subject} when it may take sandboxes again"},
	{HostDraining, Note, "an operator drains a host",
		"wait until it is empty, and stop its worker; boxfleet host uncordon {subject} ends the drain"},
	{HostDrainLate, Warning, "a host is not empty although the deadline of its drain has passed",
		"read which sandboxes are left with boxfleet sandbox list, and the log of the worker {subject}"},

	{OwedPlacement, Warning, "a sandbox has waited for a host for more than a minute",
		"run boxfleet sandbox explain on it, with --tenant if the name begins with a tenant: it says why each host " +
			"refuses it"},
	{OwedCreate, Warning, "a sandbox should be ready by now",
		"run boxfleet sandbox explain on it, with --tenant if the name begins with a tenant, and read the log of its worker"},
	{OwedRestart, Warning, "a sandbox has waited for the restart of its container for more than a minute",
		"run boxfleet sandbox explain on it, with --tenant if the name begins with a tenant, and remove the cause"},
	{OwedStop, Warning, "a sandbox should be stopped by now", "check that its worker and its engine answer"},
	{OwedDelete, Warning, "a sandbox should be removed by now",
		"check that its worker and its engine answer; if the host never comes back, run boxfleet host forget on its worker"},
	{OwedExec, Warning, "an exec should have started or ended by now",
		"run boxfleet sandbox explain on its sandbox, with --tenant if the name begins with a tenant, and check that its " +
			"worker and its engine answer"},
	{OwedMore, Warning, "more is late than is listed", "remove the cause of the findings above, and repeat"},
}
