package supervise

import (
	"bytes"
	"encoding/binary"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
)

// The three files of an exec form a set. Most execs print nothing, and are forgotten before their record is written.
// Creating and removing three files takes more time in the file system's journal than the rest of such an exec takes in
// the worker. A NATS server on the same disk also waits for the journal when the server flushes. So if nothing was
// written to the files, the next exec uses the set. If a file has content, the files are removed with their exec, and
// the set's number is never used again.
//
// The mapping of sets to execs must outlive the worker. The worker stores the mapping in a file of the same directory:
// the table. The table has one line of fixed length for each set, with the set's number and its exec.

const (
	tableName = ".sets" // cannot be an exec's id, because ids have no dots
	lineSize  = 128     // divides a page, so a line is never written partially
	numberEnd = 8
	idEnd     = numberEnd + protocol.MaxIDLength
	tableMost = lineSize * control.MaxExecs

	// sparesMost is the maximum number of free sets that keep their files. The files of further sets are removed.
	sparesMost = 128
)

// heldFiles counts the files of free sets that this process keeps open, of all sandboxes together.
var heldFiles atomic.Int64

// heldPart limits heldFiles to an eighth of the process's limit of open files. The files of other free sets are closed,
// and opened again for their next exec.
const heldPart = 8

var heldLimit = sync.OnceValue(func() int64 {
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) != nil {
		return 0
	}
	return int64(min(limit.Cur, 1<<20) / heldPart)
})

// set is the table's entry for a set of files.
type set struct {
	line   int64
	number uint64
	files  *passed // nil while the files are not open
	ended  bool    // the exec has ended; once the supervisor has forgotten the exec, it writes no more to the files
}

// sets are the sets of files of one sandbox. The files of some execs do not belong to a set, but are named after their
// exec: the files that the previous version created, and the files that are created while the table cannot be used.
type sets struct {
	dir int // descriptor of the directory with the files

	mu    sync.Mutex
	table *os.File // nil while the table is not open
	alien bool     // the table cannot be used: another link uses it, or it is damaged
	byID  map[string]*set
	clean []*set // free sets whose files exist and are empty
	free  []*set // free sets without files
	lines int64
	last  uint64          // the highest number of a set so far
	named map[string]bool // execs whose files are named after the exec
}

// setName returns the prefix of the names of a set's files.
func setName(number uint64) string { return "." + strconv.FormatUint(number, 10) }

// openSets reads the table and the files that an earlier worker left in the directory. The caller must close the
// descriptor dir.
func openSets(dir int) (*sets, error) {
	s := &sets{dir: dir, byID: map[string]*set{}, named: map[string]bool{}}
	there, err := s.list()
	if err != nil || !there[tableName] {
		return s, err
	}
	if err := s.openTable(0); err != nil {
		s.alien = true
		return s, nil
	}
	data, err := io.ReadAll(io.NewSectionReader(s.table, 0, tableMost))
	if err != nil {
		s.close()
		return s, notRead(err)
	}
	for lines := data; len(lines) >= lineSize; lines = lines[lineSize:] {
		s.last = max(s.last, binary.LittleEndian.Uint64(lines))
	}
	for ; len(data) >= lineSize; data = data[lineSize:] {
		one := &set{line: s.lines, number: binary.LittleEndian.Uint64(data)}
		s.lines++
		id, files := idOf(data), 0
		for _, name := range fileNames {
			if there[fileOf(setName(one.number), name)] {
				files++
			}
		}
		switch {
		case files == 0:
			s.renumber(one)
			if id == "" || s.write(one, "") == nil {
				s.free = append(s.free, one)
			}
		case id == "":
			s.clean = append(s.clean, one)
		default:
			s.byID[id] = one
		}
	}
	return s, nil
}

// list lists the directory. It notes which execs have files that are named after them, and the highest set number.
func (s *sets) list() (there map[string]bool, err error) {
	fd, err := unix.Openat(s.dir, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, notMade(control.ExecsDir, err)
	}
	dir := os.NewFile(uintptr(fd), control.ExecsDir)
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, notMade(control.ExecsDir, err)
	}
	there = map[string]bool{}
	for _, name := range names {
		there[name] = true
		before, after, files := strings.Cut(name, ".")
		if before != "" && files {
			s.named[before] = true
		}
		// The number of a set's file must not be used again, even if the table was lost.
		if number, _, ofSet := strings.Cut(after, "."); before == "" && ofSet {
			n, _ := strconv.ParseUint(number, 10, 64) // 0 if it is not a number
			s.last = max(s.last, n)
		}
	}
	return there, nil
}

// openTable opens and locks the table, so that no other link uses it.
func (s *sets) openTable(flags int) error {
	fd, err := unix.Openat(
		s.dir,
		tableName,
		flags|unix.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC,
		0o600,
	)
	if err != nil {
		return notMade(tableName, err)
	}
	table := os.NewFile(uintptr(fd), tableName)
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil || stat.Mode&unix.S_IFMT != unix.S_IFREG || stat.Nlink != 1 {
		table.Close()
		return hostile(tableName, "is not a regular file, or has several names")
	}
	if err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		table.Close()
		return notMade(tableName, err)
	}
	s.table = table
	return nil
}

func (s *sets) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.table != nil {
		s.table.Close()
		s.table = nil
	}
	s.alien = true
	for _, one := range s.byID {
		one.files.release()
	}
	for _, one := range s.clean {
		if one.files != nil {
			heldFiles.Add(-control.ExecFiles)
			one.files.release()
		}
	}
	s.byID, s.clean, s.free = nil, nil, nil
}

// open opens the files of an exec, and creates missing ones. Each call for the same exec opens the same files.
func (s *sets) open(id string) (*passed, error) {
	one, known, err := s.choose(id)
	switch {
	case err != nil:
		return nil, err
	case one == nil:
		return openFiles(s.dir, id)
	case !known:
		if err := s.write(one, id); err != nil {
			s.mu.Lock()
			defer s.mu.Unlock()
			delete(s.byID, id)
			one.files.release()
			one.files = nil
			s.renumber(one)
			s.free = append(s.free, one)
			return nil, err
		}
	}
	s.mu.Lock()
	files, name := one.files.hold(), setName(one.number)
	s.mu.Unlock()
	if files != nil {
		return files, nil
	}
	if files, err = openFiles(s.dir, name); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byID[id] == one && one.files == nil {
		one.files = files.hold()
	}
	return files, nil
}

// choose returns the set of an exec, or else a free set, which becomes the exec's set. The second result is true if the
// exec already had the set. choose returns no set if the exec's files are named after the exec, or if there are too
// many sets.
func (s *sets) choose(id string) (one *set, known bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if one := s.byID[id]; one != nil {
		return one, true, nil
	}
	if err := protocol.ValidateID("exec_id", id); err != nil {
		return nil, false, err
	}
	if s.alien || s.named[id] {
		return nil, false, nil
	}
	if s.table == nil {
		if err := s.openTable(unix.O_CREAT); err != nil {
			return nil, false, err
		}
	}
	if one = s.next(); one != nil {
		s.byID[id] = one
	}
	return one, false, nil
}

// next returns a free set, preferably one with files, or nil if there are too many sets. The caller holds s.mu.
func (s *sets) next() (one *set) {
	if n := len(s.clean); n > 0 {
		one, s.clean = s.clean[n-1], s.clean[:n-1]
		if one.files != nil {
			heldFiles.Add(-control.ExecFiles)
		}
		return one
	}
	if n := len(s.free); n > 0 {
		one, s.free = s.free[n-1], s.free[:n-1]
		return one
	}
	if s.lines == control.MaxExecs {
		return nil
	}
	s.lines++
	one = &set{line: s.lines - 1}
	s.renumber(one)
	return one
}

// renumber gives a set a new number, so that the set gets new files. The caller holds s.mu.
func (s *sets) renumber(one *set) {
	s.last++
	one.number = s.last
}

// write writes the line of a set to the table. The caller does not hold s.mu, because writing to a busy disk takes
// long.
func (s *sets) write(one *set, id string) error {
	var line [lineSize]byte
	binary.LittleEndian.PutUint64(line[:], one.number)
	copy(line[numberEnd:idEnd], id)
	if _, err := s.table.WriteAt(line[:], one.line*lineSize); err != nil {
		return notMade(tableName, err)
	}
	return nil
}

// ended records that an exec has ended.
func (s *sets) ended(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if one := s.byID[id]; one != nil {
		one.ended = true
	}
}

// giveBack makes the set of an exec free. It keeps the set's files for another exec if they are empty and nothing can
// be written to them any more. The parameter forgotten is true if the supervisor has forgotten the exec. giveBack
// returns false if the exec has no set.
func (s *sets) giveBack(id string, forgotten bool) (found bool) {
	s.mu.Lock()
	one := s.byID[id]
	delete(s.byID, id)
	keep := one != nil && one.ended && forgotten && len(s.clean) < sparesMost
	s.mu.Unlock()
	if one == nil {
		return false
	}
	clean := keep && one.empty()
	if !clean {
		removeFiles(s.dir, setName(one.number))
	}
	s.mu.Lock()
	one.ended = false
	if !clean {
		s.renumber(one)
	}
	if !clean || heldFiles.Load() >= heldLimit() {
		one.files.release()
		one.files = nil
	}
	s.mu.Unlock()
	err := s.write(one, "")
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err != nil:
		one.files.release()
	case !clean:
		s.free = append(s.free, one)
	default:
		if one.files != nil {
			heldFiles.Add(control.ExecFiles)
		}
		s.clean = append(s.clean, one)
	}
	return true
}

// empty reports whether the files of a set are open and empty.
func (one *set) empty() bool {
	if one.files.count() != control.ExecFiles {
		return false
	}
	for _, fd := range one.files.fds {
		var stat unix.Stat_t
		if unix.Fstat(fd, &stat) != nil || stat.Size != 0 {
			return false
		}
	}
	return true
}

// openFiles opens the files of one exec, and creates missing ones. Their names start with the given prefix. The result
// has the order of [control.Start].
func openFiles(dir int, begin string) (*passed, error) {
	return makeFiles(
		dir,
		fileOf(begin, control.StdoutName),
		fileOf(begin, control.StderrName),
		fileOf(begin, control.RecordName),
	)
}

func removeFiles(dir int, begin string) {
	for _, name := range fileNames {
		unix.Unlinkat(dir, fileOf(begin, name), 0)
	}
}

// setOf reads the name of an exec's set from the table. It returns "" if the exec has no set.
func setOf(run *os.Root, execID string) (string, error) {
	file, err := openFile(run, tableName, control.ExecsDir)
	if protocol.CodeOf(err) == protocol.NotFound {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	defer file.Close()
	var part [32 * lineSize]byte
	for at := int64(0); at < tableMost; at += int64(len(part)) {
		n, err := file.ReadAt(part[:], at)
		for lines := part[:n]; len(lines) >= lineSize; lines = lines[lineSize:] {
			if idOf(lines) == execID {
				return setName(binary.LittleEndian.Uint64(lines)), nil
			}
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return "", notRead(err)
		}
	}
	return "", nil
}

func notRead(err error) error {
	return protocol.Errorf(protocol.Internal, "", "read the table of the execs' output files: %v", err)
}

// idOf returns the exec in a line of the table.
func idOf(line []byte) string { return string(bytes.TrimRight(line[numberEnd:idEnd], "\x00")) }
