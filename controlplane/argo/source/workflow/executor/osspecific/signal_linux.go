// The file that the module's zip lacks: Linux's twin of signal_darwin.go beside which it is put.

package osspecific

import (
	"errors"
	"os"
	"syscall"
	"time"

	argoerrors "github.com/argoproj/argo-workflows/v4/util/errors"
)

var (
	Term = syscall.SIGTERM
)

// CanIgnoreSignal says whether a signal is the runtime's own and not for the step.
func CanIgnoreSignal(s os.Signal) bool {
	return s == syscall.SIGCHLD || s == syscall.SIGURG
}

// Kill signals the whole group of a process, so that what a step's shell started hears it too.
func Kill(pid int, s syscall.Signal) error {
	if pgid, err := syscall.Getpgid(pid); err == nil {
		return syscall.Kill(-pgid, s)
	}
	return syscall.Kill(pid, s)
}

// Setpgid makes a process the head of a group of its own.
func Setpgid(a *syscall.SysProcAttr) {
	a.Setpgid = true
}

// Wait returns the exit code of a process as an error.  It reaps whatever else ends meanwhile, since it runs in the
// container's first process.
func Wait(process *os.Process) error {
	pid := process.Pid
	if err := process.Release(); err != nil {
		return err
	}
	for {
		var s syscall.WaitStatus
		wpid, err := syscall.Wait4(-1, &s, syscall.WNOHANG, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
			continue
		case err != nil:
			return err
		case wpid == pid && s.Exited():
			return argoerrors.NewExitErr(s.ExitStatus())
		case wpid == pid && s.Signaled():
			return argoerrors.NewExitErr(128 + int(s.Signal()))
		case wpid > 0:
			continue // another's end; there may be more
		}
		time.Sleep(time.Second)
	}
}
