package sdk

import (
	"io"

	"github.com/boxfleet/boxfleet/protocol"
)

// Each call has its own option interface, so passing an option to a call that does not support it fails to compile. The
// type of an option for several calls embeds the interfaces of these calls. If an option is given twice, the last one
// counts.

// CreateOption is an option of [Client.Create].
type CreateOption interface{ forCreate(*settings) }

// EnsureOption is an option of [Client.Ensure].
type EnsureOption interface{ forEnsure(*settings) }

// StartOption is an option of [Sandbox.Start].
type StartOption interface{ forStart(*settings) }

// ExecOption is an option of [Sandbox.Exec] and [Sandbox.RunCode].
type ExecOption interface{ forExec(*settings) }

// WaitOption is an option of [Exec.Wait].
type WaitOption interface{ forWait(*settings) }

// ChangeOption is an option of [Sandbox.Stop], [Sandbox.Resume] and [Sandbox.Delete].
type ChangeOption interface{ forChange(*settings) }

// RequestOption is an option of the calls that return when the request is accepted: [Sandbox.Extend], [Exec.Cancel].
type RequestOption interface{ forRequest(*settings) }

// SignalOption is an option of [Exec.Signal].
type SignalOption interface{ forSignal(*settings) }

// DeleteByLabelsOption is an option of [Client.DeleteByLabels].
type DeleteByLabelsOption interface{ forDeleteByLabels(*settings) }

// ListOption selects sandboxes in [Client.List] and [Client.ListPage].
type ListOption interface{ forList(*settings) }

// ExecsOption selects execs in [Sandbox.Execs] and [Sandbox.ExecsPage].
type ExecsOption interface{ forExecs(*settings) }

// EventsOption is an option of [Sandbox.Events] and [Exec.Events].
type EventsOption interface{ forEvents(*settings) }

// OutputOption is an option of [Exec.Output].
type OutputOption interface{ forOutput(*settings) }

// LogsOption is an option of [Sandbox.Logs].
type LogsOption interface{ forLogs(*settings) }

// LogsPageOption is an option of [Sandbox.LogsPage].
type LogsPageOption interface{ forLogsPage(*settings) }

// UploadOption is an option of [Client.Upload].
type UploadOption interface{ forUpload(*settings) }

// ImportOption is an option of [Images.Import].
type ImportOption interface{ forImport(*settings) }

// IDOption is the type of [WithID].
type IDOption interface {
	CreateOption
	StartOption
	ExecOption
}

// SensitiveEnvOption is the type of [WithSensitiveEnv].
type SensitiveEnvOption interface {
	CreateOption
	StartOption
	ExecOption
}

// NameOption is the type of [WithName].
type NameOption interface {
	CreateOption
	ListOption
}

// YAMLOption is the type of [WithYAML].
type YAMLOption interface {
	CreateOption
	EnsureOption
}

// RequestIDOption is the type of [WithRequestID].
type RequestIDOption interface {
	CreateOption
	StartOption
	ExecOption
	ChangeOption
	RequestOption
	SignalOption
}

// UntilDoneOption is the type of [WithWait].
type UntilDoneOption interface {
	CreateOption
	EnsureOption
	ChangeOption
	DeleteByLabelsOption
}

// ResultOption is the type of [WithStdout], [WithStderr] and [WithCollect].
type ResultOption interface {
	ExecOption
	WaitOption
}

// PageOption is the type of [WithPageSize] and [WithPage].
type PageOption interface {
	ListOption
	ExecsOption
	ListFilesOption
	GlobOption
	ChangesOption
}

// FollowOption is the type of [WithFollow].
type FollowOption interface {
	EventsOption
	OutputOption
	LogsOption
}

// OffsetOption is the type of [WithOffset].
type OffsetOption interface {
	OutputOption
	LogsOption
	WaitOption
}

// ServiceOption is the type of [WithService].
type ServiceOption interface {
	LogsOption
	LogsPageOption
	UploadOption
	FilesOption
	DialOption
	PortOption
}

// ProgressOption is the type of [WithProgress].
type ProgressOption interface {
	UploadOption
	ImportOption
	DownloadOption
	UploadTreeOption
}

// ExcludeOption is the type of [WithExclude].
type ExcludeOption interface {
	UploadOption
	GlobOption
	GrepOption
	WatchOption
	PackOption
	DownloadOption
	UploadTreeOption
}

// OwnerOption is the type of [WithOwner].
type OwnerOption interface {
	UploadOption
	WriteFileOption
	MkdirOption
	UnpackOption
	UploadTreeOption
}

// option implements all option interfaces. Each constructor returns only the interfaces of the calls that accept the
// option.
type option func(*settings)

func (o option) forCreate(s *settings)         { o(s) }
func (o option) forEnsure(s *settings)         { o(s) }
func (o option) forStart(s *settings)          { o(s) }
func (o option) forExec(s *settings)           { o(s) }
func (o option) forWait(s *settings)           { o(s) }
func (o option) forChange(s *settings)         { o(s) }
func (o option) forRequest(s *settings)        { o(s) }
func (o option) forSignal(s *settings)         { o(s) }
func (o option) forDeleteByLabels(s *settings) { o(s) }
func (o option) forList(s *settings)           { o(s) }
func (o option) forExecs(s *settings)          { o(s) }
func (o option) forEvents(s *settings)         { o(s) }
func (o option) forOutput(s *settings)         { o(s) }
func (o option) forLogs(s *settings)           { o(s) }
func (o option) forLogsPage(s *settings)       { o(s) }
func (o option) forUpload(s *settings)         { o(s) }
func (o option) forDial(s *settings)           { o(s) }
func (o option) forPort(s *settings)           { o(s) }
func (o option) forImport(s *settings)         { o(s) }

// WithID sets the id of the sandbox or the exec: 1 to 64 characters of A-Z a-z 0-9 _ -. An id is never used twice, not
// even after a delete: a second use fails with already_exists. The default is the request id of the call; see
// [WithRequestID].
func WithID(id string) IDOption {
	return option(func(s *settings) { s.id, s.idGiven = &id, true })
}

// WithName gives a new sandbox a name, which has the same form as an id. [Client.Sandbox] and [Client.Get] find the
// sandbox by its id or its name. Of a tenant's pending, ready and stopped sandboxes, only one can have a given name.
// When that sandbox has failed or is deleted, another sandbox can take the name. A name must differ from every id ever
// used and must not look like a generated id.
//
// In a list, WithName selects the sandboxes that have this name, and the failed and deleted sandboxes that had it.
func WithName(name string) NameOption {
	return option(func(s *settings) { s.name = &name })
}

// WithRequestID sets the id of the request. A caller that lost its connection or was restarted can repeat the call with
// the same request id and gets the same sandbox or exec. If the first request was refused, the fleet decides the
// repeated request again. A request id belongs to one request for one sandbox: using it for another verb or exec fails
// with already_exists. The default is a new id.
func WithRequestID(id string) RequestIDOption {
	return option(func(s *settings) { s.request = &id })
}

// WithWait says whether the call waits until its work is done (true, the default) or only until a coordinator has
// accepted the request. An accepted request is durable and will be carried out.
func WithWait(wait bool) UntilDoneOption {
	return option(func(s *settings) { s.acceptedOnly = !wait })
}

// WithYAML gives Create or Ensure a spec as one YAML document in the format of docs/spec.md. The spec argument of the
// call is merged over the document as spec.Merge does: scalars replace, maps are merged, lists are appended. env holds
// the values of the variables $VAR in the text; nil means that no variable is set. [WithID] and [WithName] override the
// document's id and name, and so does the name argument of Ensure. Copies with a source on this machine are uploaded
// first; relative paths start at the working directory.
func WithYAML(document []byte, env map[string]string) YAMLOption {
	return option(func(s *settings) { s.yaml, s.env = document, env })
}

// WithSensitiveEnv adds environment variables to the sandbox or the exec. Their values are sealed before they leave
// this process, and reads show *** in their place.
func WithSensitiveEnv(values map[string]string) SensitiveEnvOption {
	return option(func(s *settings) { s.sensitive = values })
}

// WithStdin gives the command what the reader returns, to its end. A buffer in memory of at most [protocol.MaxStdin]
// bytes travels with the request. Everything else is copied while the command runs; the spec then has OpenStdin. The
// end of the command ends the copy; a goroutine stays until the reader's last Read returns. An error of the reader ends
// the stdin, and [Sandbox.Exec] returns the error. If this client ends, the stdin stays open for another writer, see
// [Exec.Stdin].
func WithStdin(r io.Reader) InputOption {
	return inputOption{r}
}

// InputOption is an option of [Sandbox.Exec] and [Sandbox.Start].
type InputOption interface {
	StartOption
	ExecOption
}

type inputOption struct{ io.Reader }

func (o inputOption) forStart(s *settings) { s.stdin = o.Reader }
func (o inputOption) forExec(s *settings)  { s.stdin = o.Reader }

// WithStdout streams the exec's stdout into w as it arrives, byte for byte. The goroutine that made the call also makes
// all writes, one after another, and none after the call has returned. If a write fails, the call ends with the error
// of the write and the exec keeps running. A slow writer does not slow the exec.
func WithStdout(w io.Writer) ResultOption {
	return option(func(s *settings) { s.stdout = w })
}

// WithStderr streams the exec's stderr into w; see [WithStdout].
func WithStderr(w io.Writer) ResultOption {
	return option(func(s *settings) { s.stderr = w })
}

// WithCollect limits how many bytes of each of stdout and stderr the [Result] holds. The default is [DefaultCollect]; 0
// collects nothing. A stream that has a writer is not collected.
func WithCollect(limit int64) ResultOption {
	return option(func(s *settings) { s.collect = limit })
}

// WithLabels selects the sandboxes that have every one of these labels with these values.
func WithLabels(labels map[string]string) ListOption {
	return option(func(s *settings) { s.labels = labels })
}

// WithStates selects the sandboxes in any of these states. Without states it selects all sandboxes except deleted ones.
func WithStates(states ...SandboxState) ListOption {
	return option(func(s *settings) { s.states = texts(states) })
}

// WithExecStates selects the execs in any of these states. Without states it selects all execs.
func WithExecStates(states ...ExecState) ExecsOption {
	return option(func(s *settings) { s.states = texts(states) })
}

// WithPageSize sets how many items one page holds, 1 to 1000. The default, also for 0, is 100. A page of files holds 1
// to 5000, and 1000 by default. Reading a whole list takes fewer round trips with larger pages.
func WithPageSize(items int) PageOption {
	return option(func(s *settings) { s.pageSize = items })
}

// WithPage starts with the page that has this token: the field Next of the preceding [Page]. Without WithPage, or with
// an empty token, a list starts with the first page.
func WithPage(token string) PageOption {
	return option(func(s *settings) { s.page = token })
}

// WithFrom starts with the event that has this number. The default, also for 0, is 1.
func WithFrom(sequence uint64) EventsOption {
	return option(func(s *settings) { s.from = max(sequence, 1) })
}

// WithFollow says whether the sequence continues with items that are added later (true) or ends with the items that
// exist now (false, the default). Each call documents what ends a followed sequence.
func WithFollow(follow bool) FollowOption {
	return option(func(s *settings) { s.follow = follow })
}

// WithOffset starts one stream, [Stdout] or [Stderr], at a byte offset. The default is 0, the first byte that was ever
// printed. To resume an interrupted read, use WithOffset once for each stream, with the offset after the last byte that
// arrived.
func WithOffset(stream string, offset int64) OffsetOption {
	return option(func(s *settings) {
		if s.offsets == nil {
			s.offsets = map[string]int64{}
		}
		s.offsets[stream] = offset
	})
}

// WithService selects a service of the sandbox instead of the sandbox's own container. [Sandbox.Logs] and
// [Sandbox.LogsPage] then read the output of the service; [Client.Upload] then prepares a copy into the container of
// the service; [Sandbox.Files] then works in that container; [Sandbox.DialContext], [Sandbox.WaitForPort] and
// [Sandbox.WaitForHTTP] then connect to a server in it.
func WithService(name string) ServiceOption {
	return option(func(s *settings) { s.service = name })
}

// WithExclude leaves out the files and directories that the patterns match. A directory is left out with everything
// below it. The patterns have the syntax of a .gitignore file; see [CheckExclude]. Only the calls that carry trees
// between this machine and the fleet take patterns that begin with "!" or end with "/": [Client.Upload], [Files.Upload]
// and [Files.Download]. The other calls on files refuse them, with invalid_argument naming "exclude[i]".
func WithExclude(patterns ...string) ExcludeOption {
	return option(func(s *settings) { s.exclude = append(s.exclude, patterns...) })
}

// WithOwner sets the owner that all files get in the sandbox: uid or uid:gid, as numbers. By default [Client.Upload]
// keeps the numeric ids of each file's owner on this machine. Files that the calls of [Files] make belong to the user
// of the call, and the kernel decides whether that user may give files away.
func WithOwner(owner string) OwnerOption {
	return option(func(s *settings) { s.owner = owner })
}

// WithProgress reports the progress of an upload or a download: the bytes carried so far, and the bytes to carry, or -1
// if their number is not known. The goroutine that made the call also calls report, from time to time. An upload to the
// store never calls report if the fleet already has the content.
func WithProgress(report func(sent, total int64)) ProgressOption {
	return option(func(s *settings) { s.progress = report })
}

// WithChanges applies Dockerfile instructions, such as "ENV A=1", to the image that an import makes from a root file
// system.
func WithChanges(instructions ...string) ImportOption {
	return option(func(s *settings) { s.changes = append(s.changes, instructions...) })
}

// WithWorkers limits an import to the hosts of these workers. By default every host gets the image, including hosts
// that join later.
func WithWorkers(names ...string) ImportOption {
	return option(func(s *settings) { s.workers = append(s.workers, names...) })
}

// settings holds the options of one call. Each call reads only the fields of the options that it supports.
type settings struct {
	// requests
	id, name, request *string // nil: not given
	idGiven           bool    // an option set id; fillIDs sets id in any case
	acceptedOnly      bool
	tree              bool // a signal goes to all processes of the exec
	yaml              []byte
	env               map[string]string
	sensitive         map[string]string

	// results of execs
	stdin          io.Reader
	stdout, stderr io.Writer
	collect        int64

	// lists
	labels   map[string]string
	states   []string
	pageSize int
	page     string

	// events, output and logs
	from    uint64
	follow  bool
	offsets map[string]int64
	service string

	// uploads and imports
	exclude, changes, workers []string
	owner                     string
	progress                  func(sent, total int64)

	user  string // user in the container for operations on files
	files fileSettings
}

// DefaultCollect is how many bytes of each of stdout and stderr a [Result] holds by default: 1 MiB. See [WithCollect].
const DefaultCollect = 1 << 20

// settingsOf applies options to the default settings. apply is the method of the option interface, such as
// ListOption.forList.
func settingsOf[O any](opts []O, apply func(O, *settings)) *settings {
	s := &settings{collect: DefaultCollect, from: 1}
	for _, o := range opts {
		apply(o, s)
	}
	return s
}

// fillIDs checks the ids and the name of a request, and generates the ids that were not given.
func (s *settings) fillIDs() error {
	if s.request == nil {
		generated := NewID()
		s.request = &generated
	} else if err := protocol.ValidateID("request", *s.request); err != nil {
		return err
	}
	if s.id == nil {
		s.id = s.request
	}
	if s.name != nil {
		if err := protocol.ValidateName("name", *s.name); err != nil {
			return err
		}
	}
	return protocol.ValidateID("id", *s.id)
}

// checkReading refuses unknown streams, and negative limits and offsets.
func (s *settings) checkReading() error {
	if s.collect < 0 {
		return protocol.Invalid("option.WithCollect", "must not be negative, got %d", s.collect)
	}
	for stream, offset := range s.offsets {
		if stream != Stdout && stream != Stderr {
			return protocol.Invalid("option.WithOffset", "must name %s or %s, got %.40q", Stdout, Stderr, stream)
		}
		if offset < 0 {
			return protocol.Invalid("option.WithOffset", "must not be negative, got %d", offset)
		}
	}
	return nil
}

// given returns the value of an option, or "" if the option was not given.
func given(value *string) string {
	if value == nil {
		return ""
	}
	return *value
}

func texts[T ~string](values []T) []string {
	all := make([]string, len(values))
	for i, v := range values {
		all[i] = string(v)
	}
	return all
}
