// Package logging is where all messages of the process end. kedge's own messages and
// those of its libraries come to logrus's standard logger: from klog through kubeinit,
// from containerd and etcd through their packages, and from CoreDNS and others that use
// the standard library's loggers through this package. The cli package opens it before
// anything else.
package logging

import (
	"errors"
	"fmt"
	"io"
	stdlog "log"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"
	"gopkg.in/natefinch/lumberjack.v2"

	"github.com/kedge-dev/kedge/internal/base/config"
)

// Log is the process's log. Its levels can change while the process runs.
type Log struct{ levels atomic.Pointer[config.Levels] }

// Open sends all messages where cfg says, at the levels of cfg. Lines are written to a
// log file at once. The file with the configured name has the newest lines.
func Open(cfg config.Log) (*Log, error) {
	l := &Log{}
	l.SetLevels(cfg.Levels())
	journal := cfg.File == "" && isJournal(os.Getenv("JOURNAL_STREAM"), os.Stderr)
	var format logrus.Formatter = &logrus.TextFormatter{FullTimestamp: true, DisableTimestamp: journal, DisableColors: journal}
	if cfg.Format == "json" {
		format = &logrus.JSONFormatter{DisableTimestamp: journal}
	}
	if journal {
		format = prioritized{format}
	}
	logrus.SetFormatter(&filter{&l.levels, format})
	logrus.SetOutput(os.Stderr)
	if cfg.File != "" {
		out, err := openFile(cfg)
		if err != nil {
			return nil, err
		}
		logrus.SetOutput(out)
	}
	stdlog.SetFlags(0)
	stdlog.SetOutput(standard{})
	return l, nil
}

func openFile(cfg config.Log) (io.Writer, error) {
	if err := os.MkdirAll(filepath.Dir(cfg.File), 0o755); err != nil {
		return nil, fmt.Errorf("make folder of the log: %w", err)
	}
	// lumberjack opens the file only with the first line, which is too late for an error. A FIFO
	// that nobody reads is an error, too, and does not block.
	file, err := os.OpenFile(cfg.File, os.O_WRONLY|os.O_APPEND|os.O_CREATE|unix.O_NONBLOCK, 0o600)
	if errors.Is(err, unix.ENXIO) {
		return nil, fmt.Errorf("open log: nobody reads the FIFO %s: choose a regular file with --log", cfg.File)
	}
	if err != nil {
		return nil, fmt.Errorf("open log: %w: choose another file with --log", err)
	}
	if err := file.Close(); err != nil {
		return nil, fmt.Errorf("open log: %w", err)
	}
	rotating := &lumberjack.Logger{Filename: cfg.File, MaxSize: cfg.MaxSize, MaxBackups: cfg.MaxFiles, LocalTime: true}
	if cfg.AlsoToStderr {
		// stderr first, because the disk may be full.
		return io.MultiWriter(os.Stderr, rotating), nil
	}
	return rotating, nil
}

// Files returns the files of a log, the newest last; none if the log is not in a file.
func Files(path string) []string {
	if path == "" {
		return nil
	}
	// lumberjack.Logger puts the time before the extension of old files. If the name is
	// not a valid pattern, the old files are only missing from the list.
	extension := filepath.Ext(path)
	old, _ := filepath.Glob(strings.TrimSuffix(path, extension) + "-*" + extension)
	return append(old, path)
}

// Levels returns the levels that are logged now.
func (l *Log) Levels() config.Levels { return *l.levels.Load() }

// SetLevels changes the levels that are logged from now on.
func (l *Log) SetLevels(levels config.Levels) {
	l.levels.Store(&levels)
	most := levels[""]
	for _, level := range levels {
		most = max(most, level)
	}
	logrus.SetLevel(most)
}

// filter formats messages at the levels of their component, and drops the others.
type filter struct {
	levels *atomic.Pointer[config.Levels]
	logrus.Formatter
}

func (f *filter) Format(entry *logrus.Entry) ([]byte, error) {
	component, _ := entry.Data["component"].(string)
	if entry.Level > f.levels.Load().Of(component) {
		return nil, nil
	}
	return f.Formatter.Format(entry)
}

// prioritized puts the priority before each line, as the journal expects: sd-daemon(3).
type prioritized struct{ logrus.Formatter }

func (p prioritized) Format(entry *logrus.Entry) ([]byte, error) {
	line, err := p.Formatter.Format(entry)
	if err != nil {
		return nil, err
	}
	priority := map[logrus.Level]int{
		logrus.PanicLevel: 2, logrus.FatalLevel: 2, logrus.ErrorLevel: 3, logrus.WarnLevel: 4, logrus.InfoLevel: 6, logrus.DebugLevel: 7, logrus.TraceLevel: 7,
	}[entry.Level]
	return append(fmt.Appendf(nil, "<%d>", priority), line...), nil
}

// isJournal tells whether file is the connection to systemd's journal that JOURNAL_STREAM
// names: systemd.exec(5). A shell in between may have redirected the file.
func isJournal(stream string, file *os.File) bool {
	var stat unix.Stat_t
	if stream == "" || unix.Fstat(int(file.Fd()), &stat) != nil {
		return false
	}
	return stream == fmt.Sprintf("%d:%d", stat.Dev, stat.Ino)
}
