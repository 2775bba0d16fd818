"""The command line of everything but `site run`."""

import argparse
import os

from . import builds, layout, lifecycle, sh


def parser() -> argparse.ArgumentParser:
    """Return the parser of `site`."""
    main_parser = argparse.ArgumentParser(prog="site", description="A Slurm cluster of three hosts on this machine.")
    commands = main_parser.add_subparsers(dest="command", required=True)
    up = commands.add_parser("up", help="build what is missing, start what does not run; quick if all is there")
    # The variable chooses for a whole run of tests, wherever in it `up` is called.
    chosen = os.environ.get("SITE_PROFILE") or "flannel"
    if chosen not in layout.PROFILES:
        main_parser.error(f"SITE_PROFILE is '{chosen}', not one of {', '.join(sorted(layout.PROFILES))}")
    how_far = "how far the site prepared; default: $SITE_PROFILE, else flannel"
    up.add_argument("--profile", choices=sorted(layout.PROFILES), default=chosen, help=how_far)
    down = commands.add_parser("down", help="remove processes, namespaces and interfaces; /home stays")
    down.add_argument("--purge", action="store_true", help="remove the users' homes too")
    commands.add_parser("argo", help="let the registry serve Argo's images too, building them if they are missing")
    commands.add_parser("conformance", help="the same for the images that Kubernetes' own tests name")
    commands.add_parser("status", help="what runs; exit code 0 only if all of it does")
    kill = commands.add_parser("kill", help="switch a host off without warning; up boots it again")
    kill.add_argument("host", choices=[host.name for host in layout.HOSTS])
    commands.add_parser("run", help="[--user NAME] HOST -- COMMAND …: a command on a host")
    return main_parser


def main(arguments: list[str]) -> int:
    """Do what the arguments say; 1 and a line on stderr if it cannot be done."""
    options = parser().parse_args(arguments)
    if os.geteuid() != 0:
        sh.say("must run as root: it makes namespaces and mounts")
        return 1
    os.umask(0o022)
    try:
        if options.command == "up":
            lifecycle.up(layout.PROFILES[options.profile])
        elif options.command == "argo":
            lifecycle.add_images(builds.argo)
        elif options.command == "conformance":
            lifecycle.add_images(builds.conformance)
        elif options.command == "down":
            lifecycle.down(purge=options.purge)
        elif options.command == "kill":
            lifecycle.kill(next(host for host in layout.HOSTS if host.name == options.host))
        else:
            text, is_healthy = lifecycle.status()
            print(text)  # noqa: T201
            return 0 if is_healthy else 1
    except sh.SiteError as error:
        sh.say(str(error))
        return 1
    except KeyboardInterrupt:
        return 130
    return 0
