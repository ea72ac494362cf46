package logging

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	stdlog "log"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"github.com/kedge-dev/kedge/internal/base/config"
)

// open opens a log, and restores the loggers when the test ends.
func open(t *testing.T, cfg config.Log) *Log {
	t.Helper()
	standard := logrus.StandardLogger()
	out, format, level, writer, flags := standard.Out, standard.Formatter, standard.Level, stdlog.Writer(), stdlog.Flags()
	t.Cleanup(func() {
		logrus.SetOutput(out)
		logrus.SetFormatter(format)
		logrus.SetLevel(level)
		stdlog.SetOutput(writer)
		stdlog.SetFlags(flags)
	})
	l, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestLevelsByComponent(t *testing.T) {
	l := open(t, config.Log{Level: []string{"warn", "scheduler=debug"}})
	var out bytes.Buffer
	logrus.SetOutput(&out)
	say := func() string {
		out.Reset()
		for _, component := range []string{"scheduler", "scheduler/bind", "dns"} {
			for _, level := range []logrus.Level{logrus.DebugLevel, logrus.InfoLevel, logrus.WarnLevel} {
				logrus.WithField("component", component).Log(level, "said")
			}
		}
		var lines []string
		for line := range strings.Lines(out.String()) {
			_, rest, _ := strings.Cut(line, "level=")
			level, rest, _ := strings.Cut(rest, " ")
			_, component, _ := strings.Cut(rest, "component=")
			lines = append(lines, strings.TrimSpace(component)+":"+level)
		}
		return strings.Join(lines, " ")
	}
	if got := say(); got != "scheduler:debug scheduler:info scheduler:warning scheduler/bind:debug scheduler/bind:info scheduler/bind:warning dns:warning" {
		t.Errorf("got lines %s, want those of scheduler at debug, and the warning of dns", got)
	}
	l.SetLevels(config.Levels{"": logrus.InfoLevel, "scheduler": logrus.ErrorLevel})
	if got := say(); got != "dns:info dns:warning" {
		t.Errorf("after the change of levels: got lines %s, want dns:info dns:warning", got)
	}
	if got := strings.Join(l.Levels().Words(), ","); got != "info,scheduler=error" {
		t.Errorf("the levels are %s", got)
	}
}

func TestJSON(t *testing.T) {
	open(t, config.Log{Format: "json"})
	var out bytes.Buffer
	logrus.SetOutput(&out)
	logrus.WithField("component", "dns").Warn("two\nlines")
	var line map[string]string
	if err := json.Unmarshal(out.Bytes(), &line); err != nil || line["msg"] != "two\nlines" || line["component"] != "dns" || line["level"] != "warning" || line["time"] == "" {
		t.Errorf("got line %s (%v), want one in JSON with the message, the component, the level and the time", out.String(), err)
	}
}

// A file is rotated by its size, and a limited number of old files is kept.
func TestFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kedge", "kedge.log")
	open(t, config.Log{Format: "text", File: path, MaxSize: 1, MaxFiles: 2})
	text := strings.Repeat("x", 300<<10)
	for n := range 12 {
		logrus.Infof("%d %s", n, text)
	}
	files := Files(path)
	if len(files) < 2 || files[len(files)-1] != path {
		t.Fatalf("got %v", files)
	}
	for _, file := range files {
		info, err := os.Stat(file)
		if err != nil || info.Size() > 1<<20 || info.Mode().Perm() != 0o600 {
			t.Errorf("log file %s: got %v, %v, want at most 1 MiB and mode 0600", file, info, err)
		}
	}
	newest, err := os.ReadFile(path)
	if err != nil || !bytes.Contains(newest, []byte("11 xxx")) {
		t.Errorf("the newest line is not in %s: %v", path, err)
	}

	if _, err := Open(config.Log{File: t.TempDir()}); err == nil || !strings.Contains(err.Error(), "--log") {
		t.Errorf("a folder as a file: %v", err)
	}
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(config.Log{File: fifo}); err == nil || !strings.Contains(err.Error(), "nobody reads the FIFO "+fifo) {
		t.Errorf("a FIFO that nobody reads: %v", err)
	}
}

// If stderr is the journal, a line begins with its priority and has no time.
func TestJournal(t *testing.T) {
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	var stat unix.Stat_t
	if err := unix.Fstat(int(write.Fd()), &stat); err != nil {
		t.Fatal(err)
	}
	stderr := os.Stderr
	defer func() { os.Stderr = stderr }()
	os.Stderr = write
	t.Setenv("JOURNAL_STREAM", fmt.Sprintf("%d:%d", stat.Dev, stat.Ino))
	open(t, config.Log{Format: "text"})
	logrus.Warn("said")
	logrus.Error("said")
	t.Setenv("JOURNAL_STREAM", "1:1")
	open(t, config.Log{Format: "text"})
	logrus.Info("elsewhere")
	write.Close()
	text, err := io.ReadAll(read)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.SplitAfter(string(text), "\n")
	if len(lines) != 4 || lines[0] != "<4>level=warning msg=said\n" || lines[1] != "<3>level=error msg=said\n" || !strings.HasPrefix(lines[2], "time=") {
		t.Errorf("got %q", lines)
	}
}

// Messages of the standard library's loggers get their level.
func TestStandard(t *testing.T) {
	open(t, config.Log{})
	var out bytes.Buffer
	logrus.SetOutput(&out)
	logrus.SetFormatter(&logrus.TextFormatter{DisableTimestamp: true, DisableColors: true})
	stdlog.Print("[WARNING] plugin/errors: timeout")
	stdlog.Print("[ERROR] plugin/errors: refused")
	stdlog.Print("[FATAL] plugin/loop: gone")
	stdlog.Print("http: TLS handshake error")
	stdlog.Print("error is a word")
	slog.Error("failed", "why", "none")
	want := `level=warning msg="plugin/errors: timeout" component=dns
level=warning msg="plugin/errors: refused" component=dns
level=error msg="plugin/loop: gone" component=dns
level=info msg="http: TLS handshake error"
level=info msg="error is a word"
level=error msg="failed why=none"
`
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
}
