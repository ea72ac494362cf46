package recording

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kedge-dev/kedge/internal/base/datadir"
)

const (
	// nameLayout makes the name of an hour's file from the hour. Names sort like the hours.
	nameLayout = "2006-01-02T15"
	// ending is that of the files on the disk.
	ending = ".gz"
	// mostLive is how many bytes the file of an hour in memory may have. Samples need 60 KiB. Moments beyond
	// that are only counted.
	mostLive = 256 << 10
	// mostKept is how many hours are kept, before the present and after it: a clock may have been wrong.
	mostKept = int(Kept/time.Hour) + 1
)

// Folders are where a node's recording is.
type Folders struct {
	// Disk has the hours that have ended. Memory has the present one and the one before. A reboot empties it.
	Disk, Memory string
}

// Of returns the two folders of the recording. The argument is the data directory of kedge.
func Of(dir datadir.Dir) Folders {
	return Folders{Disk: dir.Recording(), Memory: datadir.RecordingMemory}
}

func (f Folders) disk(hour time.Time) string {
	return filepath.Join(f.Disk, hour.UTC().Format(nameLayout)+ending)
}

func (f Folders) memory(hour time.Time) string {
	return filepath.Join(f.Memory, hour.UTC().Format(nameLayout))
}

// Store writes a recording. It is safe for concurrent use.
type Store struct {
	folders Folders
	curves  []Curve

	mu      sync.Mutex
	hour    time.Time
	file    *os.File
	size    int
	dropped int
}

// Open makes the folders of a recording, which only root can read, and finishes what a kedge that was killed has
// left. now is the present time. If the disk takes nothing, the error says so, and the Store can be used: it tries
// again after each hour. Without a folder in memory there is no Store.
func Open(folders Folders, curves []Curve, now time.Time) (*Store, error) {
	for _, folder := range []string{folders.Disk, folders.Memory} {
		if err := os.MkdirAll(folder, 0o700); err != nil {
			return nil, fmt.Errorf("make folder of the recording: %w", err)
		}
	}
	s := &Store{folders: folders, curves: curves}
	err := s.begin(now.UTC().Truncate(time.Hour))
	if s.file == nil {
		return nil, err
	}
	return s, err
}

// Sample adds a sample, whose values stand in the order of the curves.
func (s *Store) Sample(at time.Time, values []float64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.writeLocked(at, sampleLine(at, values))
}

// Note adds a moment. If there are too many in an hour, it only counts them.
func (s *Store) Note(m Moment) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.size > mostLive && m.At.UTC().Truncate(time.Hour).Equal(s.hour) {
		s.dropped++
		return nil
	}
	return s.writeLocked(m.At, line{Moment: &m})
}

// Close puts the present hour on the disk.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return errors.Join(s.endLocked(), s.keep(s.hour))
}

// writeLocked adds a line to the file of its hour. It also begins the file of a new hour, and then puts the one
// before on the disk.
func (s *Store) writeLocked(at time.Time, l line) error {
	var fault error
	if hour := at.UTC().Truncate(time.Hour); !hour.Equal(s.hour) || s.file == nil {
		fault = errors.Join(s.endLocked(), s.begin(hour))
	}
	if s.file == nil {
		return fault
	}
	text, err := json.Marshal(l)
	if err != nil {
		return errors.Join(fault, fmt.Errorf("write recording: %w", err))
	}
	// One write, so that nobody reads half a line unless the machine stops in between.
	n, err := s.file.Write(append(text, '\n'))
	s.size += n
	if err != nil {
		fault = errors.Join(fault, fmt.Errorf("write recording: %w", err))
	}
	return fault
}

// begin opens the file of an hour, and puts all others on the disk.
func (s *Store) begin(hour time.Time) error {
	s.hour, s.size = hour, 0
	faults := []error{s.tidy(hour)}
	file, err := os.OpenFile(s.folders.memory(hour), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return errors.Join(append(faults, fmt.Errorf("begin an hour of the recording: %w", err))...)
	}
	s.file = file
	if info, err := file.Stat(); err == nil {
		s.size = int(info.Size())
	}
	return errors.Join(append(faults, s.writeLocked(hour, line{Curves: s.curves}))...)
}

// endLocked closes the file of the present hour.
func (s *Store) endLocked() error {
	if s.file == nil {
		return nil
	}
	if s.dropped > 0 {
		text := fmt.Sprintf("%d more moments of this hour are not in the recording", s.dropped)
		s.dropped = 0
		at := s.hour.Add(time.Hour - time.Second)
		if err := s.writeLocked(s.hour, line{Moment: &Moment{At: at, Kind: "recorder", Text: text}}); err != nil {
			return err
		}
	}
	err := s.file.Close()
	s.file = nil
	return err
}

// tidy puts hours on the disk that have ended, and removes what is too old. The hour before the present one also
// stays in memory, with all its samples.
func (s *Store) tidy(present time.Time) error {
	live, err := hours(s.folders.Memory, "")
	faults := []error{err}
	for _, hour := range live {
		if hour.Equal(present) {
			continue
		}
		if err := s.keep(hour); err != nil {
			faults = append(faults, err)
			continue
		}
		if !hour.Equal(present.Add(-time.Hour)) {
			faults = append(faults, os.Remove(s.folders.memory(hour)))
		}
	}
	kept, err := hours(s.folders.Disk, ending)
	faults = append(faults, err)
	later := slices.IndexFunc(kept, func(hour time.Time) bool { return hour.After(present) })
	if later < 0 {
		later = len(kept)
	}
	for i, hour := range kept {
		if i < later-mostKept || i >= later+mostKept {
			faults = append(faults, os.Remove(s.folders.disk(hour)))
		}
	}
	return errors.Join(faults...)
}

// hours returns the hours that a folder has files of, the earliest first.
func hours(folder, ending string) ([]time.Time, error) {
	entries, err := os.ReadDir(folder) // sorted by name
	var hours []time.Time
	for _, entry := range entries {
		name, ok := strings.CutSuffix(entry.Name(), ending)
		if hour, err := time.Parse(nameLayout, name); ok && err == nil {
			hours = append(hours, hour)
		}
	}
	return hours, err
}

// keep puts what is in memory of an hour on the disk, unless the disk has it.
func (s *Store) keep(hour time.Time) error {
	from, to := s.folders.memory(hour), s.folders.disk(hour)
	written, err := os.Stat(from)
	if err != nil {
		return fmt.Errorf("keep an hour of the recording: %w", err)
	}
	if kept, err := os.Stat(to); err == nil && !kept.ModTime().Before(written.ModTime()) {
		return nil
	}
	text, err := os.ReadFile(from)
	if err != nil {
		return fmt.Errorf("keep an hour of the recording: %w", err)
	}
	// The earlier part of the hour may be there, from before a reboot.
	var live Recording
	kept := s.folders.kept(hour)
	live.decode(text)
	kept.merge(live.Condense(minute))
	return datadir.WriteFile(to, compress(kept.Encode()), 0o600)
}

// kept returns what the disk has of an hour. If the file cannot be read, a moment says so.
func (f Folders) kept(hour time.Time) (kept Recording) {
	data, err := os.ReadFile(f.disk(hour))
	if errors.Is(err, fs.ErrNotExist) {
		return kept
	}
	var text []byte
	if err == nil {
		text, err = decompress(data)
	}
	if err != nil {
		kept.Moments = []Moment{{At: hour, Kind: "recorder", Text: "The recording of this hour cannot be read: " + err.Error()}}
		return kept
	}
	kept.decode(text)
	return kept
}

// Read reads the part of a recording between two times. kedge need not run.
func (f Folders) Read(from, to time.Time) (*Recording, error) {
	read := &Recording{}
	for hour := from.UTC().Truncate(time.Hour); !hour.After(to); hour = hour.Add(time.Hour) {
		text, err := os.ReadFile(f.memory(hour))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("read the recording of %s: %w", hour.Format(nameLayout), err)
		}
		var live Recording
		live.decode(text)
		read.merge(f.kept(hour))
		read.merge(live)
	}
	read.between(from, to)
	return read, nil
}
