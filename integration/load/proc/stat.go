// Package proc starts the processes of a load run, stops them by pid, and reads
// from Linux's /proc what they cost. The bench command is its only caller; it
// never touches a process that it did not start.
package proc

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// tick is the unit of CPU times in /proc: USER_HZ, 100 on every Linux port Go has.
const tick = 10 * time.Millisecond

// stat is what a line of /proc/PID/stat says.
type stat struct {
	ppid int
	cpu  time.Duration // user + system
}

// parseStat reads a /proc/PID/stat line. The command name may hold spaces and
// parentheses, so fields are counted from the last closing one.
func parseStat(line []byte) (stat, error) {
	end := bytes.LastIndexByte(line, ')')
	if end < 0 {
		return stat{}, errors.New("stat: no command name")
	}
	const ppid, utime, stime = 1, 11, 12 // counted after the command name
	f := strings.Fields(string(line[end+1:]))
	if len(f) <= stime {
		return stat{}, fmt.Errorf("stat: %d fields", len(f))
	}
	var n [3]int
	for i, at := range []int{ppid, utime, stime} {
		v, err := strconv.Atoi(f[at])
		if err != nil {
			return stat{}, fmt.Errorf("stat: field %d: %w", at, err)
		}
		n[i] = v
	}
	return stat{ppid: n[0], cpu: time.Duration(n[1]+n[2]) * tick}, nil
}

// parseKB finds "Name:   123 kB" in /proc/PID/status and returns bytes, 0 when
// the field is absent, as it is for kernel threads and the dead.
func parseKB(status []byte, name string) (int64, error) {
	for line := range strings.Lines(string(status)) {
		value, ok := strings.CutPrefix(line, name+":")
		if !ok {
			continue
		}
		number := strings.TrimSuffix(strings.TrimSpace(value), " kB")
		kb, err := strconv.ParseInt(number, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("status: %s: %w", name, err)
		}
		return kb << 10, nil
	}
	return 0, nil
}

// Tree returns pid and all its living descendants, pid first.
func Tree(pid int) ([]int, error) {
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	children := map[int][]int{}
	for _, dir := range dirs {
		child, err := strconv.Atoi(filepath.Base(dir))
		if err != nil {
			continue
		}
		s, err := readStat(child)
		if gone(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		children[s.ppid] = append(children[s.ppid], child)
	}
	tree := []int{pid}
	for i := 0; i < len(tree); i++ {
		tree = append(tree, children[tree[i]]...)
	}
	return tree, nil
}

// CPU is the CPU time each process of a tree has used so far.
type CPU map[int]time.Duration

// ReadCPU reads the CPU times of pid and its descendants.
func ReadCPU(pid int) (CPU, error) {
	tree, err := Tree(pid)
	if err != nil {
		return nil, err
	}
	cpu := CPU{}
	for _, p := range tree {
		s, err := readStat(p)
		if gone(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		cpu[p] = s.cpu
	}
	return cpu, nil
}

// Since is the CPU time used between two readings of one tree. A process born
// in between counts whole; one that died in between is lost.
func (c CPU) Since(earlier CPU) time.Duration {
	var d time.Duration
	for pid, now := range c {
		d += now - earlier[pid]
	}
	return d
}

// Memory is the resident memory of a tree in bytes, summed over its processes:
// pages they share count once for each, so compare differences.
type Memory struct {
	RSS  int64
	Peak int64 // since the process started, or since ResetPeak
}

// ReadMemory reads the memory of pid and its descendants.
func ReadMemory(pid int) (Memory, error) {
	tree, err := Tree(pid)
	if err != nil {
		return Memory{}, err
	}
	var m Memory
	for _, p := range tree {
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p))
		if gone(err) {
			continue
		}
		if err != nil {
			return Memory{}, err
		}
		rss, err := parseKB(status, "VmRSS")
		if err != nil {
			return Memory{}, err
		}
		peak, err := parseKB(status, "VmHWM")
		if err != nil {
			return Memory{}, err
		}
		m.RSS += rss
		m.Peak += peak
	}
	return m, nil
}

// ResetPeak sets the peak of pid and its descendants back to what they hold
// now. Where that is not allowed the peak keeps counting from the start.
func ResetPeak(pid int) error {
	tree, err := Tree(pid)
	if err != nil {
		return err
	}
	var errs []error
	for _, p := range tree {
		if err := os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", p), []byte("5"), 0); !gone(err) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func readStat(pid int) (stat, error) {
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return stat{}, err
	}
	return parseStat(line)
}

// gone says that err is only that the process ended meanwhile.
func gone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH)
}
